/* A seat, in three parts: who starts the pool process, what is said, what it does. */
#ifndef SHUNTER_SEAT_H
#define SHUNTER_SEAT_H

#include <stddef.h>
#include <sys/un.h>

#include "shunter_handover.h"

struct seat {
    struct sockaddr_un address; /* of the pool process */
    char lock_path[sizeof(((struct sockaddr_un *)0)->sun_path) + 8];
    char **worker; /* the command without a pool */
    char *module;  /* the pool process */
};

/* Standard output is the model's log. */
__attribute__((format(printf, 1, 2))) void say(const char *format, ...);

/* Says what has failed, by errno. Returns -1. */
int failed(const char *what);

/* A connection to the pool process, which is started if there is none; -1 without one. */
int connected_or_started(const struct seat *seat);

/* End a pool process that does not answer, if it is stopped, or always. Whether it was. */
int end_pool(const struct seat *seat, int always);

/* Say all that this process has. -1: the pool process is gone; or it stands still, by EAGAIN. */
int hand_over(int fd, const struct seat *seat);

/* One message with descriptors. */
int send_with(int fd, const void *data, size_t size, const int *given, size_t count);

/* 1 with a word, its text and its descriptor, which is -1 without one; 0 when nobody is there. */
int hear(int fd, struct shunter_seat_word *word, int *given, char *text);

#endif
