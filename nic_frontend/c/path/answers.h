/* Answers, as much of them as the path takes. */
#ifndef SHUNTER_ANSWERS_H
#define SHUNTER_ANSWERS_H

#include "core_parts.h"

void shunter_answers_open(struct session *session, uint64_t now_ns);
/* Segments of the longest answer that a worker may send. */
uint32_t shunter_direct_segments(const struct session *session);
/* Whether its worker may send it as it is: it is no more than the path takes at once. */
bool shunter_answer_is_direct(struct session *session, uint64_t now_ns);
/* Its worker has sent it. */
void shunter_answer_was_sent(struct session *session, struct call *call, uint64_t now_ns);
/* It is to be sent. */
void shunter_answer(
    struct shunter_core *core, struct session *session, struct call *call, uint64_t now_ns);
/* Its client says what it has of it, and if it is a question that it wants the rest. */
void shunter_answer_heard(
    struct shunter_core *core, struct session *session, struct call *call, const uint8_t *have,
    uint32_t have_bytes, bool question, uint64_t now_ns);
/* Its client has all of it. */
void shunter_answer_came(struct session *session, struct call *call, uint64_t now_ns);
/* Nothing more of it is sent. */
void shunter_answer_over(struct session *session, struct call *call);
/* Send what may go now. */
void shunter_answers_go(struct shunter_core *core, struct session *session, uint64_t now_ns);
void shunter_answers_tick(struct shunter_core *core, uint64_t now_ns);

#endif
