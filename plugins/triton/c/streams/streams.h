/*
 * Answers in parts. A request whose answer is streamed has one entry, and some more beside it: places
 * that its worker writes the next parts into. What is there is found under the function's lock, sent
 * without it, and its place is the worker's again.
 */
#ifndef SHUNTER_TRITON_STREAMS_H
#define SHUNTER_TRITON_STREAMS_H

#include "backend.h"

/* ---- under the lock */

struct shunter_streams *shunter_streams_new(uint32_t entries);
void shunter_streams_free(struct shunter_streams *streams);
/* An entry becomes a request's; there are SHUNTER_STREAM_PLACES more that are free. */
void shunter_stream_takes_places(struct shunter_function *function, uint32_t entry);
void shunter_stream_gives_places_back(struct shunter_function *function, uint32_t entry);
/* It goes to a worker; it has run, or not. */
void shunter_stream_runs(struct shunter_function *function, uint32_t entry);
void shunter_stream_stops(struct shunter_function *function, uint32_t entry);
/* From time to time: nobody wants those that are cancelled. */
void shunter_look_after_streams(struct shunter_function *function);
/* What workers have written is to be sent now; whether there is anything. */
bool shunter_find_parts(struct shunter_function *function, uint64_t now_ns);
/* It was: its places are free for the next parts. */
void shunter_parts_have_gone(struct shunter_function *function);

/* ---- without it */

/* Send them. */
void shunter_send_parts(const struct shunter_function *function);
/* The parts that are left, and the end; as shunter_respond. */
bool shunter_end_stream(const struct shunter_function *function, struct shunter_call *call);

#endif
