#define _GNU_SOURCE
#include "page_send.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif
#define PAGE 4096
#define PIPE_BYTES (1 << 19)
#define MOST_AT_ONCE 32
#define MOST_PAGES 16 /* of one datagram: the kernel sends so many at once */
#define ROOM_MS 100

static int open_pipe(struct shunter_page_sender *sender) {
    if (pipe2(sender->ends, O_CLOEXEC | O_NONBLOCK)) {
        return -errno;
    }
    fcntl(sender->ends[1], F_SETPIPE_SZ, PIPE_BYTES); // less is fine
    const int bytes = fcntl(sender->ends[1], F_GETPIPE_SZ);
    sender->slots = bytes > 0 ? (unsigned)bytes / PAGE : 1;
    return 0;
}

void shunter_page_sender_close(struct shunter_page_sender *sender) {
    if (sender->slots) {
        close(sender->ends[0]);
        close(sender->ends[1]);
        sender->slots = 0;
    }
}

static unsigned pages(const struct iovec *payload) {
    const uintptr_t at = (uintptr_t)payload->iov_base;
    return (unsigned)((at + payload->iov_len - 1) / PAGE - at / PAGE + 1);
}

/* As many payloads as the pipe takes; how many. */
static uint32_t fill(struct shunter_page_sender *sender, const struct iovec *pieces, uint32_t count) {
    struct iovec payloads[MOST_AT_ONCE];
    unsigned slots = 0;
    size_t bytes = 0;
    uint32_t taken = 0;
    while (taken < count && taken < MOST_AT_ONCE) {
        const struct iovec *payload = &pieces[2 * taken + 1];
        const unsigned needed = payload->iov_len ? pages(payload) : 0;
        slots += needed;
        if (!needed || needed > MOST_PAGES || slots > sender->slots) {
            break;
        }
        bytes += payload->iov_len;
        payloads[taken++] = *payload;
    }
    if (taken && vmsplice(sender->ends[1], payloads, taken, SPLICE_F_NONBLOCK) != (ssize_t)bytes) {
        sender->refused = true;
        return 0;
    }
    return taken;
}

/*
 * Its header, which the socket keeps until the payload comes. The length of a segment, although
 * there is just one, lets the kernel leave the checksum to the device: it would be computed here
 * otherwise, and wrongly when a piece of the payload ends at an odd place.
 */
static int send_header(int socket, const struct iovec *pieces) {
    uint8_t control[CMSG_SPACE(sizeof(uint16_t))] = {0};
    const struct msghdr message = {
        .msg_iov = (struct iovec *)(uintptr_t)pieces,
        .msg_iovlen = 1,
        .msg_control = control,
        .msg_controllen = sizeof control};
    struct cmsghdr *about = CMSG_FIRSTHDR(&message);
    about->cmsg_level = IPPROTO_UDP;
    about->cmsg_type = UDP_SEGMENT;
    about->cmsg_len = CMSG_LEN(sizeof(uint16_t));
    const uint16_t size = (uint16_t)(pieces[0].iov_len + pieces[1].iov_len);
    memcpy(CMSG_DATA(about), &size, sizeof size);
    for (int tries = 0; tries < 3; tries++) {
        if (sendmsg(socket, &message, MSG_MORE | MSG_NOSIGNAL) >= 0) {
            return 0;
        }
        struct pollfd room = {.fd = socket, .events = POLLOUT};
        if (errno == EAGAIN ? poll(&room, 1, ROOM_MS) <= 0
                            : errno != ECONNREFUSED && errno != EINTR) { // of an earlier datagram
            break;
        }
    }
    return -1;
}

static int send_one(struct shunter_page_sender *sender, int socket, const struct iovec *pieces) {
    if (send_header(socket, pieces)) {
        return -1;
    }
    const size_t length = pieces[1].iov_len;
    if (splice(sender->ends[0], NULL, socket, NULL, length, SPLICE_F_NONBLOCK) == (ssize_t)length) {
        return 0;
    }
    // What the socket still keeps goes out too short, and is dropped where it arrives.
    const int off = 0;
    setsockopt(socket, IPPROTO_UDP, UDP_CORK, &off, sizeof off);
    sender->refused = true;
    return -1;
}

uint32_t shunter_page_send(
    struct shunter_page_sender *sender, int socket, const struct iovec *pieces, uint32_t count) {
    uint32_t sent = 0;
    if (sender->refused || (!sender->slots && open_pipe(sender))) {
        return 0;
    }
    while (sent < count) {
        const uint32_t filled = fill(sender, pieces + 2 * sent, count - sent);
        const uint32_t end = sent + filled;
        while (sent < end && !send_one(sender, socket, pieces + 2 * sent)) {
            sent++;
        }
        if (!filled || sent < end) {
            shunter_page_sender_close(sender); // with what is left in it
            break;
        }
    }
    return sent;
}
