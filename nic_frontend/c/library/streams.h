/* What the streams of a session and the session know of each other. */
#ifndef SHUNTER_STREAMS_H
#define SHUNTER_STREAMS_H

#include "client_parts.h"
#include "hello.h"

/* ---- streams.c */

/* Whether what has ended is of a stream, which knows it then. */
bool shunter_session_streams_take(struct shunter_session *session, const struct shunter_ended *ended);
/* Ask for the parts for which there may be room now. */
void shunter_session_streams_go_on(struct shunter_session *session);
/* When the session is over. */
void shunter_session_streams_free(struct shunter_session *session);

/* ---- session.c */

/* A request has begun. */
void shunter_session_begun(struct shunter_session *session);
/* As shunter_poll; what is of no stream, and has no room in ``results``, is dropped. */
int shunter_session_poll(
    struct shunter_session *session, struct shunter_result *results, unsigned most,
    uint64_t until_ns);

#endif
