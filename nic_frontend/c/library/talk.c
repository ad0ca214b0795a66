/* Hellos over a connection, again and again. */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "address.h"
#include "client_parts.h"
#include "hello.h"

#define FIRST_WAIT_NS 50000000ULL
#define MOST_WAIT_NS 1000000000ULL
#define LARGEST 65536

/* Whole and not a byte of what is behind it; its length, 0: there is none yet. */
static ssize_t take_message(
    const struct shunter_client_settings *settings, uint8_t *into, size_t *have, int *memory) {
    if (!settings->stream) {
        const ssize_t length = recv(settings->socket, into, LARGEST, MSG_DONTWAIT);
        return length < 0 ? (errno == EAGAIN || errno == EINTR ? 0 : -errno) : length;
    }
    for (;;) {
        struct shunter_x64 header;
        size_t wanted = SHUNTER_HEADER_BYTES;
        if (*have >= SHUNTER_HEADER_BYTES) {
            memcpy(&header, into, sizeof header);
            wanted += header.length;
        }
        if (wanted > LARGEST) {
            return -EPROTO;
        }
        if (*have >= SHUNTER_HEADER_BYTES && *have == wanted) {
            *have = 0;
            return (ssize_t)wanted;
        }
        const ssize_t got =
            shunter_receive_memory(settings->socket, into + *have, wanted - *have, memory);
        if (got < 0) {
            return errno == EAGAIN || errno == EINTR ? 0 : -errno;
        }
        if (!got) {
            return -ECONNRESET;
        }
        *have += (size_t)got;
    }
}

static int say(const struct shunter_hello *hello, int socket) {
    const ssize_t sent =
        send(socket, hello->message, sizeof hello->message, MSG_NOSIGNAL | MSG_DONTWAIT);
    return sent == sizeof hello->message ? 0 : sent < 0 && errno != EAGAIN ? -errno : -EIO;
}

int shunter_hello_talk(
    struct shunter_hello *hello, struct shunter_client_settings *settings,
    struct shunter_tensors *tensors, uint64_t until_ns) {
    uint64_t wait_ns = FIRST_WAIT_NS, due_ns = 0, said_ns = 0;
    size_t have = 0;
    int result = -EAGAIN;
    uint8_t *message = malloc(LARGEST);
    if (!message) {
        return -ENOMEM;
    }
    while (result == -EAGAIN) {
        uint64_t now = shunter_client_now_ns();
        if (now >= until_ns) {
            result = -ETIMEDOUT;
            break;
        }
        if (now >= due_ns) {
            said_ns = said_ns ? said_ns : now;
            due_ns = settings->stream ? UINT64_MAX : now + wait_ns;
            wait_ns = wait_ns < MOST_WAIT_NS / 2 ? 2 * wait_ns : MOST_WAIT_NS;
            const int error = say(hello, settings->socket);
            if (error) {
                result = error;
                break;
            }
        }
        const int ready =
            shunter_wait(settings->socket, POLLIN, due_ns < until_ns ? due_ns : until_ns);
        const ssize_t length =
            ready > 0 ? take_message(settings, message, &have, &hello->memory) : (ssize_t)ready;
        if (length < 0) {
            result = (int)length;
        } else if (length) {
            result = shunter_hello_take(hello, message, (size_t)length, settings, tensors);
        }
        if (result == 1) { // at once, with the cookie
            due_ns = said_ns = 0;
            wait_ns = FIRST_WAIT_NS;
            result = -EAGAIN;
        }
    }
    free(message);
    settings->trip_ns = shunter_client_now_ns() - said_ns; // to the server and back
    return result;
}
