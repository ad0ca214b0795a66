#define _GNU_SOURCE
#include "client.h"

#include <errno.h>
#include <limits.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <poll.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>

#include "core.h"
#include "gift.h"
#include "segments.h"
#include "siphash.h"

#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif

#define FIRST_RTO_NS 20000000ULL
#define LEAST_RTO_NS 2000000ULL
#define MOST_RTO_NS 1000000000ULL
/* Nothing is lost on a stream, but the server may end a session that says nothing. */
#define STREAM_RTO_NS 1000000000ULL
#define RETRY_NS 20000000ULL /* when the server has no room */
/* To ask costs two headers, and something may be lost: no model is so slow that it is not asked. */
#define MOST_PATIENCE_NS 100000000ULL
#define MOST_REST_NS 400000000ULL   /* while the server says that it has the request */
#define MOST_MESSAGES 64            /* in one system call */
#define MOST_MERGED 64              /* segments in one message, UDP_MAX_SEGMENTS of older kernels */
#define LARGEST_MESSAGE 65507
#define PADS 16
#define SPILL 65536

struct call {
    uint64_t req_id; /* 0: free */
    uint64_t sent_ns, due_ns, rto_ns, deadline_ns;
    uint64_t asked_ns; /* when the server was asked how it stands, 0: it has answered that */
    uint32_t got; /* segments of the answer */
    uint16_t flags;
    uint8_t priority;
    bool again; /* segments were sent again */
    const uint8_t *inputs[SHUNTER_MAX_TENSORS];
    uint8_t *outputs[SHUNTER_MAX_TENSORS];
    uint8_t received[SHUNTER_BITMAP_BYTES];
};

struct landed {
    const uint8_t *header, *payload;
    uint32_t length; /* of the payload */
};

struct shunter_client {
    struct shunter_client_settings settings;
    struct shunter_plan inputs, outputs;
    struct call calls[SHUNTER_WINDOW];
    struct shunter_client_numbers live;
    uint64_t pkt_no, rttvar_ns;
    uint8_t *hello; /* the last answer to one */
    uint32_t hello_length;
    struct shunter_ended ended[SHUNTER_WINDOW];
    uint32_t ended_count;
    /* what is being sent */
    struct shunter_x64 *headers; /* of every segment of a request */
    struct iovec *pieces;
    struct mmsghdr messages[MOST_MESSAGES];
    struct shunter_gift gift;
    uint8_t controls[MOST_MESSAGES][CMSG_SPACE(sizeof(uint16_t))];
    /* what comes */
    uint8_t heads[PADS][SHUNTER_HEADER_BYTES];
    uint8_t *spill, *aside;
    uint32_t have, left; /* of a stream: bytes of the header, bytes of the payload to come */
    uint8_t *into;
    struct shunter_x64 head;
    /* what a stream did not take yet */
    uint8_t *kept;
    size_t kept_at, kept_room;
};

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000ULL + (uint64_t)now.tv_nsec;
}

static uint64_t nearest(uint32_t low, uint64_t about) {
    return about + (uint64_t)(int64_t)(int32_t)(low - (uint32_t)about);
}

static struct call *call_of(struct shunter_client *client, uint64_t req_id) {
    struct call *call = &client->calls[req_id % SHUNTER_WINDOW];
    return req_id && call->req_id == req_id ? call : NULL;
}

static uint64_t least(uint64_t a, uint64_t b) { return a < b ? a : b; }
static uint64_t most(uint64_t a, uint64_t b) { return a > b ? a : b; }

/* While it is not known how long answers take. */
static uint64_t first_rto(const struct shunter_client *client) {
    return least(MOST_RTO_NS, most(FIRST_RTO_NS, 3 * client->live.trip_ns));
}

static uint64_t rto(const struct shunter_client *client) {
    if (client->settings.stream) {
        return STREAM_RTO_NS;
    }
    if (!client->live.rtt_ns) {
        return first_rto(client);
    }
    const uint64_t wanted = most(LEAST_RTO_NS, client->live.rtt_ns + 4 * client->rttvar_ns);
    return least(least(MOST_RTO_NS, most(MOST_PATIENCE_NS, 3 * client->live.trip_ns)), wanted);
}

/* As RFC 6298 smooths round trips. */
static void measure(struct shunter_client *client, uint64_t rtt_ns) {
    if (!client->live.rtt_ns) {
        client->live.rtt_ns = rtt_ns ? rtt_ns : 1;
        client->rttvar_ns = rtt_ns / 2;
        return;
    }
    const int64_t off = (int64_t)rtt_ns - (int64_t)client->live.rtt_ns;
    client->rttvar_ns =
        (uint64_t)((int64_t)client->rttvar_ns + ((off < 0 ? -off : off) - (int64_t)client->rttvar_ns) / 4);
    client->live.rtt_ns = (uint64_t)((int64_t)client->live.rtt_ns + off / 8);
}

static void free_call(struct shunter_client *client, struct call *call) {
    call->req_id = 0;
    client->live.pending--;
    while (client->live.below < client->live.next_id &&
           client->calls[client->live.below % SHUNTER_WINDOW].req_id != client->live.below) {
        client->live.below++;
    }
}

static void end_call(struct shunter_client *client, struct call *call, uint64_t status) {
    client->ended[client->ended_count++] = (struct shunter_ended){call->req_id, status};
    free_call(client, call);
}

/* ---- what is sent */

static int send_stream(struct shunter_client *client, struct iovec *pieces, size_t count);
static int flush_stream(struct shunter_client *client);

static struct shunter_x64 header_of(struct shunter_client *client, uint8_t type, uint64_t req_id) {
    return (struct shunter_x64){
        .magic = SHUNTER_WIRE_MAGIC,
        .version = SHUNTER_WIRE_VERSION,
        .type = type,
        .words = SHUNTER_HEADER_BYTES / 8,
        .req_id = req_id,
        .func_id = client->settings.func_id,
        .count = 1,
        .session = client->settings.session,
        .credit = (uint32_t)client->live.below,
        .pkt_no = (uint32_t)++client->pkt_no};
}

static void sign(struct shunter_client *client, struct shunter_x64 *header) {
    if (client->settings.has_key) {
        header->flags |= SHUNTER_FLAG_HDR_TAG;
        header->tag = shunter_siphash24(client->settings.key, header, SHUNTER_TAG_OFFSET);
    }
}

/* What fits into no buffer or meets a dead port counts as lost: it is sent again. */
static int sent_or_lost(int error) {
    return error == EAGAIN || error == ECONNREFUSED || error == ENOBUFS ? 0 : -error;
}

static int send_pieces(struct shunter_client *client, struct iovec *pieces, size_t count) {
    if (client->settings.stream) {
        return send_stream(client, pieces, count);
    }
    const struct msghdr message = {.msg_iov = pieces, .msg_iovlen = count};
    for (int tries = 0; tries < 2; tries++) {
        if (sendmsg(client->settings.socket, &message, MSG_NOSIGNAL) >= 0) {
            return 0;
        }
        if (errno != ECONNREFUSED) { // that is of an earlier datagram: once more
            break;
        }
    }
    return sent_or_lost(errno);
}

static int control(
    struct shunter_client *client, uint8_t type, uint64_t req_id, uint16_t flags,
    const void *payload, uint16_t length) {
    struct shunter_x64 header = header_of(client, type, req_id);
    header.flags = flags;
    header.length = length;
    sign(client, &header);
    client->live.packets++;
    struct iovec pieces[2] = {
        {&header, sizeof header}, {(void *)(uintptr_t)payload, length}};
    return send_pieces(client, pieces, length ? 2 : 1);
}

/* Header and payload of a segment of a request. */
static void fill(
    struct shunter_client *client, const struct call *call, uint32_t seq, uint16_t flags,
    uint64_t now, struct shunter_x64 *header, struct iovec *pieces) {
    const struct shunter_plan *plan = &client->inputs;
    const struct shunter_segment segment = shunter_place(plan, seq);
    *header = header_of(client, SHUNTER_TYPE_REQ, call->req_id);
    header->flags =
        (uint16_t)(call->flags | flags | (seq + 1 == plan->count ? SHUNTER_FLAG_LAST : 0));
    header->priority = call->priority;
    header->seq = (uint16_t)seq;
    header->count = (uint16_t)plan->count;
    header->length = (uint16_t)segment.length;
    header->total = plan->sizes[segment.tensor];
    header->offset = segment.offset;
    header->tensor = segment.tensor;
    if (call->deadline_ns) {
        const uint64_t left =
            call->deadline_ns > now + 1000 ? (call->deadline_ns - now) / 1000 : 1;
        header->deadline_us = left > UINT32_MAX ? UINT32_MAX : (uint32_t)left;
    }
    sign(client, header);
    pieces[0] = (struct iovec){header, sizeof *header};
    pieces[1] = (struct iovec){
        segment.length ? (void *)(uintptr_t)(call->inputs[segment.tensor] + segment.offset) : NULL,
        segment.length};
    client->live.packets++;
}

/* Segments from ``seq`` on that may go as one message: all as long as the first, but the last. */
static uint32_t merged(const struct shunter_client *client, uint32_t seq) {
    const struct shunter_plan *plan = &client->inputs;
    const size_t size = SHUNTER_HEADER_BYTES + client->pieces[2 * seq + 1].iov_len;
    uint32_t count = 1;
    if (!client->settings.gso) {
        return 1;
    }
    while (seq + count < plan->count && count < MOST_MERGED &&
           size * (count + 1) <= LARGEST_MESSAGE) {
        const size_t next = SHUNTER_HEADER_BYTES + client->pieces[2 * (seq + count) + 1].iov_len;
        if (next > size) {
            break;
        }
        count++;
        if (next < size) {
            break;
        }
    }
    return count;
}

static unsigned make_messages(struct shunter_client *client, uint32_t *seq) {
    unsigned messages = 0;
    while (*seq < client->inputs.count && messages < MOST_MESSAGES) {
        const uint32_t count = merged(client, *seq);
        struct msghdr *message = &client->messages[messages].msg_hdr;
        *message = (struct msghdr){
            .msg_iov = client->pieces + (size_t)2 * *seq, .msg_iovlen = (size_t)2 * count};
        if (count > 1) {
            message->msg_control = client->controls[messages];
            message->msg_controllen = sizeof client->controls[messages];
            struct cmsghdr *about = CMSG_FIRSTHDR(message);
            about->cmsg_level = IPPROTO_UDP;
            about->cmsg_type = UDP_SEGMENT;
            about->cmsg_len = CMSG_LEN(sizeof(uint16_t));
            const uint16_t size = (uint16_t)(
                SHUNTER_HEADER_BYTES + client->pieces[(size_t)2 * *seq + 1].iov_len);
            memcpy(CMSG_DATA(about), &size, sizeof size);
        }
        *seq += count;
        messages++;
    }
    return messages;
}

/* All segments of a request as datagrams. */
static int send_datagrams(struct shunter_client *client) {
    uint32_t seq = 0;
    if (client->pieces[1].iov_len >= SHUNTER_GIFT_LEAST) {
        seq = shunter_gift_send(
            &client->gift, client->settings.socket, client->pieces, client->inputs.count);
    }
    while (seq < client->inputs.count) {
        const uint32_t first = seq;
        const unsigned count = make_messages(client, &seq);
        unsigned at = 0;
        while (at < count) {
            const int sent =
                sendmmsg(client->settings.socket, client->messages + at, count - at, MSG_NOSIGNAL);
            if (sent > 0) {
                at += (unsigned)sent;
            } else if (errno == EAGAIN) {
                struct pollfd room = {.fd = client->settings.socket, .events = POLLOUT};
                if (poll(&room, 1, 100) <= 0) {
                    return 0; // it counts as lost
                }
            } else if (client->settings.gso && (errno == EIO || errno == EINVAL || errno == EMSGSIZE)) {
                client->settings.gso = false; // this path cannot: once more, one by one
                seq = first;
                break;
            } else if (errno != ECONNREFUSED && errno != EINTR) {
                return sent_or_lost(errno);
            }
        }
    }
    return 0;
}

int64_t shunter_client_begin(
    struct shunter_client *client, const void *const *inputs, void *const *outputs,
    uint64_t deadline_us, uint32_t priority, uint32_t idempotent) {
    if (client->settings.stream && flush_stream(client) < 0) {
        return -ECONNRESET;
    }
    if (client->live.kept || client->live.next_id > client->live.grant || client->live.next_id - client->live.below >= SHUNTER_WINDOW ||
        client->live.pending + client->ended_count >= SHUNTER_WINDOW) {
        return -EAGAIN;
    }
    struct call *call = &client->calls[client->live.next_id % SHUNTER_WINDOW];
    const uint64_t now = now_ns();
    call->req_id = client->live.next_id++;
    call->sent_ns = now;
    call->rto_ns = rto(client);
    call->due_ns = now + call->rto_ns;
    call->deadline_ns = deadline_us ? now + deadline_us * 1000 : 0;
    call->asked_ns = 0;
    call->got = 0;
    call->flags = idempotent ? SHUNTER_FLAG_IDEMPOTENT : 0;
    call->priority = (uint8_t)priority;
    call->again = false;
    memcpy(call->inputs, inputs, client->inputs.tensors * sizeof *inputs);
    memcpy(call->outputs, outputs, client->outputs.tensors * sizeof *outputs);
    memset(call->received, 0, (client->outputs.count + 7) / 8);
    client->live.pending++;
    for (uint32_t seq = 0; seq < client->inputs.count; seq++) {
        fill(client, call, seq, 0, now, &client->headers[seq], client->pieces + (size_t)2 * seq);
    }
    const uint64_t req_id = call->req_id;
    const int error = client->settings.stream
        ? send_stream(client, client->pieces, (size_t)2 * client->inputs.count)
        : send_datagrams(client);
    return error ? error : (int64_t)req_id;
}

static int repeat(
    struct shunter_client *client, struct call *call, uint32_t seq, uint64_t now) {
    struct shunter_x64 header;
    struct iovec pieces[2];
    call->again = true;
    client->live.lost++;
    fill(client, call, seq, SHUNTER_FLAG_RETRANS, now, &header, pieces);
    return send_pieces(client, pieces, 2);
}

/* ---- what comes */

static bool is_ours(const struct shunter_client *client, const struct shunter_x64 *header) {
    if (header->magic != SHUNTER_WIRE_MAGIC || header->version != SHUNTER_WIRE_VERSION ||
        header->words != SHUNTER_HEADER_BYTES / 8 || header->reserved ||
        header->session != client->settings.session) {
        return false;
    }
    const bool tagged = header->flags & SHUNTER_FLAG_HDR_TAG;
    if (!client->settings.has_key) {
        return !tagged && !header->tag;
    }
    return tagged &&
           header->tag == shunter_siphash24(client->settings.key, header, SHUNTER_TAG_OFFSET);
}

/* Where the payload of an answer belongs, if it is one that is missing. */
static bool place_of(
    struct shunter_client *client, const struct shunter_x64 *header, uint8_t **place) {
    const struct call *call = call_of(client, header->req_id);
    if (header->type != SHUNTER_TYPE_RESP || !call || header->count != client->outputs.count ||
        header->seq >= header->count || call->received[header->seq / 8] >> header->seq % 8 & 1) {
        return false;
    }
    const struct shunter_segment segment = shunter_place(&client->outputs, header->seq);
    if (header->tensor != segment.tensor || header->offset != segment.offset ||
        header->length != segment.length ||
        header->total != client->outputs.sizes[segment.tensor]) {
        return false;
    }
    *place = segment.length ? call->outputs[segment.tensor] + segment.offset : NULL;
    return true;
}

/* A segment of an answer is where it belongs. */
static void received(struct shunter_client *client, const struct shunter_x64 *header, uint64_t now) {
    struct call *call = call_of(client, header->req_id);
    call->received[header->seq / 8] |= (uint8_t)(1U << header->seq % 8);
    if (++call->got < client->outputs.count) {
        call->rto_ns = least(rto(client), first_rto(client)); // the rest is on its way
        call->due_ns = now + call->rto_ns;
        return;
    }
    if (!call->again && !call->asked_ns) {
        measure(client, now - call->sent_ns);
    }
    end_call(client, call, SHUNTER_STATUS_OK);
}

/* The server has the request: wait as long again as it has taken up to now. */
static void rest(struct shunter_client *client, struct call *call, uint64_t now) {
    if (call->asked_ns) {
        const uint64_t trip = now - call->asked_ns;
        client->live.trip_ns = client->live.trip_ns ? least(client->live.trip_ns, trip) : trip;
        call->asked_ns = 0;
    }
    call->due_ns = now + most(call->rto_ns, least(MOST_REST_NS, now - call->sent_ns));
}

static int heed_sack(
    struct shunter_client *client, const struct shunter_x64 *header, struct call *call,
    const uint8_t *have, uint32_t length, uint64_t now) {
    call->rto_ns = rto(client); // it answers: what is lost now has nothing to do with before
    if (header->status != SHUNTER_SACK_RECEIVING) {
        rest(client, call, now);
        return 0;
    }
    call->due_ns = now + call->rto_ns;
    for (uint32_t seq = 0; seq < client->inputs.count; seq++) {
        if (seq / 8 >= length || !(have[seq / 8] >> seq % 8 & 1)) {
            const int error = repeat(client, call, seq, now);
            if (error) {
                return error;
            }
        }
    }
    return 0;
}

/* Anything that is ours and has no payload that belongs to an answer. */
static int heed(
    struct shunter_client *client, const struct shunter_x64 *header, const uint8_t *payload,
    uint64_t now) {
    struct call *call = call_of(client, header->req_id);
    if (!call) {
        return 0;
    }
    if (header->type == SHUNTER_TYPE_ERROR && header->status == SHUNTER_STATUS_RETRY_LATER) {
        call->due_ns = now + least(call->rto_ns, RETRY_NS);
    } else if (header->type == SHUNTER_TYPE_ERROR) {
        // An error that says that all is well is still none of the answer.
        end_call(
            client, call,
            header->status == SHUNTER_STATUS_OK ? SHUNTER_STATUS_HANDLER_FAILED : header->status);
    } else if (header->type == SHUNTER_TYPE_SACK) {
        return heed_sack(client, header, call, payload, header->length, now);
    }
    return 0;
}

static void heed_credit(struct shunter_client *client, const struct shunter_x64 *header) {
    const uint64_t grant = nearest(header->credit, client->live.grant);
    if (grant > client->live.grant && grant - client->live.grant < UINT32_MAX / 2) {
        client->live.grant = grant;
    }
}

/* Pieces for the next datagrams; where a payload lands that comes in turn. */
static void lay_out(struct shunter_client *client, struct iovec (*pieces)[3]) {
    uint64_t req_id = client->live.below;
    uint32_t seq = 0;
    for (uint32_t m = 0; m < PADS; m++) {
        struct iovec into = {NULL, 0};
        while (req_id < client->live.next_id) {
            const struct call *call = call_of(client, req_id);
            while (call && seq < client->outputs.count &&
                   call->received[seq / 8] >> seq % 8 & 1) {
                seq++;
            }
            if (call && seq < client->outputs.count) {
                const struct shunter_segment segment = shunter_place(&client->outputs, seq++);
                into.iov_len = segment.length;
                into.iov_base =
                    segment.length ? call->outputs[segment.tensor] + segment.offset : NULL;
                break;
            }
            req_id++;
            seq = 0;
        }
        pieces[m][0] = (struct iovec){client->heads[m], SHUNTER_HEADER_BYTES};
        pieces[m][1] = into;
        pieces[m][2] = (struct iovec){client->spill + (size_t)m * SPILL, SPILL};
    }
}

/* Payloads that wait may lie where an earlier one belongs. */
static void set_aside(struct shunter_client *client, struct landed *landed, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
        uint8_t *at = client->aside + (size_t)i * SPILL;
        if (landed[i].length) {
            memcpy(at, landed[i].payload, landed[i].length);
            landed[i].payload = at;
            client->live.copied += landed[i].length;
        }
    }
}

static void keep_hello(struct shunter_client *client, const struct landed *landed) {
    uint8_t *hello = realloc(client->hello, SHUNTER_HEADER_BYTES + landed->length);
    if (!hello) {
        return; // as if it were lost
    }
    client->hello = hello;
    memcpy(hello, landed->header, SHUNTER_HEADER_BYTES);
    if (landed->length) {
        memcpy(hello + SHUNTER_HEADER_BYTES, landed->payload, landed->length);
    }
    client->hello_length = SHUNTER_HEADER_BYTES + landed->length;
}

static int take_in(
    struct shunter_client *client, struct landed *landed, uint32_t count, uint64_t now) {
    bool aside = false;
    for (uint32_t i = 0; i < count; i++) {
        struct shunter_x64 header;
        uint8_t *place = NULL;
        memcpy(&header, landed[i].header, sizeof header);
        if (header.type == SHUNTER_TYPE_HELLO_ACK) {
            keep_hello(client, &landed[i]);
            continue;
        }
        if (!is_ours(client, &header) || header.length != landed[i].length) {
            continue;
        }
        client->live.heard_ns = now;
        heed_credit(client, &header);
        if (!place_of(client, &header, &place)) {
            const int error = heed(client, &header, landed[i].payload, now);
            if (error) {
                return error;
            }
            continue;
        }
        if (place && place != landed[i].payload) {
            if (!aside) {
                set_aside(client, landed + i + 1, count - i - 1);
                aside = true;
            }
            memmove(place, landed[i].payload, header.length);
            client->live.copied += header.length;
        }
        received(client, &header, now);
    }
    return 0;
}

/* Datagrams that are there; how many, or a negative errno. */
static int receive_datagrams(struct shunter_client *client) {
    struct iovec pieces[PADS][3];
    struct mmsghdr messages[PADS];
    struct landed landed[PADS];
    lay_out(client, pieces);
    for (uint32_t m = 0; m < PADS; m++) {
        messages[m] = (struct mmsghdr){.msg_hdr = {.msg_iov = pieces[m], .msg_iovlen = 3}};
    }
    const int came =
        recvmmsg(client->settings.socket, messages, PADS, MSG_DONTWAIT, NULL);
    if (came < 0) {
        return errno == EAGAIN || errno == ECONNREFUSED || errno == EINTR ? 0 : -errno;
    }
    uint32_t count = 0;
    for (int m = 0; m < came; m++) {
        const uint32_t length = messages[m].msg_len;
        if (length < SHUNTER_HEADER_BYTES || messages[m].msg_hdr.msg_flags & MSG_TRUNC) {
            continue;
        }
        struct landed *found = &landed[count++];
        const size_t room = pieces[m][1].iov_len;
        *found = (struct landed){client->heads[m], pieces[m][1].iov_base, length - SHUNTER_HEADER_BYTES};
        if (found->length > room) { // it went on into the spill
            uint8_t *at = pieces[m][2].iov_base;
            const size_t behind = found->length - room;
            if (room + behind > SPILL) {
                count--;
                continue;
            }
            memmove(at + room, at, behind);
            if (room) {
                memcpy(at, pieces[m][1].iov_base, room);
            }
            found->payload = at;
        }
    }
    client->live.packets += count;
    const int error = take_in(client, landed, count, now_ns());
    return error ? error : came;
}

/* ---- streams */

/* What follows a header on a stream: its payload, or something to be thrown away. */
static int begin_payload(struct shunter_client *client) {
    if (!is_ours(client, &client->head)) {
        return -EPROTO;
    }
    client->live.heard_ns = now_ns();
    heed_credit(client, &client->head);
    client->into = NULL;
    client->left = client->head.length;
    uint8_t *place = NULL;
    if (place_of(client, &client->head, &place)) {
        client->into = place;
    }
    return 0;
}

static int end_payload(struct shunter_client *client) {
    uint8_t *place = NULL;
    client->have = 0;
    client->live.packets++;
    if (place_of(client, &client->head, &place)) {
        received(client, &client->head, now_ns());
        return 0;
    }
    return heed(client, &client->head, client->spill, now_ns());
}

static int receive_stream(struct shunter_client *client) {
    int count = 0;
    for (;;) {
        const bool in_head = client->have < SHUNTER_HEADER_BYTES;
        uint8_t *into = in_head ? (uint8_t *)&client->head + client->have
            : client->into      ? client->into
                                : client->spill + (client->head.length - client->left);
        const size_t wanted = in_head ? SHUNTER_HEADER_BYTES - client->have : client->left;
        if (wanted) {
            const ssize_t got = recv(client->settings.socket, into, wanted, MSG_DONTWAIT);
            if (got == 0) {
                return -ECONNRESET;
            }
            if (got < 0) {
                return errno == EAGAIN ? count : errno == EINTR ? count : -errno;
            }
            count++;
            if (in_head) {
                client->have += (uint32_t)got;
            } else {
                client->left -= (uint32_t)got;
                client->into = client->into ? client->into + got : NULL;
            }
        }
        if (in_head && client->have == SHUNTER_HEADER_BYTES) {
            const int error = begin_payload(client);
            if (error) {
                return error;
            }
        }
        if (client->have == SHUNTER_HEADER_BYTES && client->left == 0) {
            const int error = end_payload(client);
            if (error) {
                return error;
            }
        }
    }
}

/* Send what was kept, as far as the socket takes it. */
static int flush_stream(struct shunter_client *client) {
    while (client->live.kept) {
        const ssize_t sent = send(
            client->settings.socket, client->kept + client->kept_at, client->live.kept,
            MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0) {
            return errno == EAGAIN || errno == EINTR ? 0 : -errno;
        }
        client->kept_at += (size_t)sent;
        client->live.kept -= (size_t)sent;
    }
    client->kept_at = 0;
    return 0;
}

static int keep(struct shunter_client *client, const struct iovec *pieces, size_t count) {
    size_t length = 0;
    for (size_t i = 0; i < count; i++) {
        length += pieces[i].iov_len;
    }
    memmove(client->kept, client->kept + client->kept_at, client->live.kept);
    client->kept_at = 0;
    if (client->live.kept + length > client->kept_room) {
        uint8_t *room = realloc(client->kept, client->live.kept + length);
        if (!room) {
            return -ENOMEM;
        }
        client->kept = room;
        client->kept_room = client->live.kept + length;
    }
    for (size_t i = 0; i < count; i++) {
        if (pieces[i].iov_len) {
            memcpy(client->kept + client->live.kept, pieces[i].iov_base, pieces[i].iov_len);
            client->live.kept += pieces[i].iov_len;
        }
    }
    client->live.copied += length;
    return 0;
}

/*
 * Never waits and never receives: what the socket does not take is kept, and goes before all else.
 * No request begins while something is kept, so that is one request and a few small messages.
 */
static int send_stream(struct shunter_client *client, struct iovec *pieces, size_t count) {
    const int error = flush_stream(client);
    if (error) {
        return error;
    }
    while (count && !client->live.kept) {
        const struct msghdr message = {
            .msg_iov = pieces, .msg_iovlen = count < IOV_MAX ? count : IOV_MAX};
        ssize_t sent = sendmsg(client->settings.socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0 && errno == EAGAIN) {
            break;
        }
        if (sent < 0 && errno != EINTR) {
            return -errno;
        }
        while (count && sent >= (ssize_t)pieces->iov_len) {
            sent -= (ssize_t)pieces->iov_len;
            pieces++;
            count--;
        }
        if (count && sent > 0) {
            pieces->iov_base = (uint8_t *)pieces->iov_base + sent;
            pieces->iov_len -= (size_t)sent;
        }
    }
    return count ? keep(client, pieces, count) : 0;
}

/* ---- time */

uint64_t shunter_client_due_ns(const struct shunter_client *client) {
    uint64_t due = UINT64_MAX;
    if (client->live.kept) {
        return due; // a stream that takes nothing is not asked
    }
    for (uint64_t id = client->live.below; id < client->live.next_id; id++) {
        const struct call *call = &client->calls[id % SHUNTER_WINDOW];
        if (call->req_id == id && call->due_ns < due) {
            due = call->due_ns;
        }
    }
    return due;
}

/* Nothing came: ask how it stands, and say what is here of the answer. */
static int tick(struct shunter_client *client, uint64_t now) {
    for (uint64_t id = client->live.below; id < client->live.next_id; id++) {
        struct call *call = call_of(client, id);
        if (!call || call->due_ns > now) {
            continue;
        }
        call->asked_ns = call->asked_ns ? call->asked_ns : now;
        const int error = control(
            client, SHUNTER_TYPE_SACK, id, SHUNTER_FLAG_ACK_REQ, call->received,
            (uint16_t)((client->outputs.count + 7) / 8));
        if (error) {
            return error;
        }
        call->rto_ns = least(MOST_RTO_NS, 2 * call->rto_ns);
        call->due_ns = now + call->rto_ns;
    }
    return 0;
}

static int wait_for_data(struct shunter_client *client, uint64_t now, uint64_t until) {
    const uint64_t ns = until > now ? until - now : 0;
    const struct timespec time = {
        .tv_sec = (time_t)(ns / 1000000000ULL), .tv_nsec = (long)(ns % 1000000000ULL)};
    struct pollfd data = {.fd = client->settings.socket, .events = POLLIN};
    if (client->live.kept) {
        data.events |= POLLOUT;
    }
    return ppoll(&data, 1, &time, NULL) < 0 && errno != EINTR ? -errno : 0;
}

int shunter_client_poll(
    struct shunter_client *client, struct shunter_ended *ended, uint32_t most, uint64_t until_ns,
    uint32_t spin) {
    while (!client->ended_count && !client->hello_length) {
        const bool kept = client->live.kept;
        int error = flush_stream(client);
        if (error) {
            return error;
        }
        if (kept && !client->live.kept) {
            break; // there is room again: the caller may be waiting to begin
        }
        const int came =
            client->settings.stream ? receive_stream(client) : receive_datagrams(client);
        if (came < 0 && !client->ended_count) {
            return came;
        }
        if (came && !client->ended_count && !client->live.pending) {
            break; // a sign of life, or credit: the caller may be waiting for it
        }
        if (came || client->ended_count) {
            continue;
        }
        const uint64_t now = now_ns(), due = shunter_client_due_ns(client);
        if (due <= now) {
            error = tick(client, now);
            if (error) {
                return error;
            }
            continue;
        }
        if (now >= until_ns) {
            return 0;
        }
        if (spin) {
            sched_yield();
            continue;
        }
        error = wait_for_data(client, now, due < until_ns ? due : until_ns);
        if (error) {
            return error;
        }
    }
    const uint32_t count = client->ended_count < most ? client->ended_count : most;
    memcpy(ended, client->ended, count * sizeof *ended);
    client->ended_count -= count;
    memmove(client->ended, client->ended + count, client->ended_count * sizeof *ended);
    return (int)count;
}

/* ---- what is rare */

uint32_t shunter_client_hello(struct shunter_client *client, const uint8_t **datagram) {
    const uint32_t length = client->hello_length;
    client->hello_length = 0;
    *datagram = client->hello;
    return length;
}

int shunter_client_cancel(struct shunter_client *client, uint64_t req_id) {
    struct call *call = call_of(client, req_id);
    if (!call) {
        return -ENOENT;
    }
    free_call(client, call);
    // An answer that is on its way must not be written to memory that is the caller's again.
    if (client->settings.stream && client->have == SHUNTER_HEADER_BYTES &&
        client->head.req_id == req_id) {
        client->into = NULL;
    }
    return control(client, SHUNTER_TYPE_CANCEL, req_id, 0, NULL, 0);
}

int shunter_client_ask(struct shunter_client *client) {
    return client->live.kept
        ? 0 // nobody would hear it now
        : control(client, SHUNTER_TYPE_ACK, 0, SHUNTER_FLAG_ACK_REQ, NULL, 0);
}

int shunter_client_farewell(struct shunter_client *client) {
    return control(client, SHUNTER_TYPE_ACK, 0, SHUNTER_FLAG_LAST, NULL, 0);
}

const struct shunter_client_numbers *shunter_client_numbers(const struct shunter_client *client) {
    return &client->live;
}

int shunter_client_new(
    const struct shunter_client_settings *settings, struct shunter_client **result) {
    struct shunter_client *client = calloc(1, sizeof *client);
    if (!client) {
        return -ENOMEM;
    }
    client->settings = *settings;
    client->settings.gso = settings->gso && !settings->stream;
    client->live.next_id = client->live.below = 1;
    client->live.grant = settings->grant;
    client->live.trip_ns = settings->trip_ns;
    client->pkt_no = settings->pkt_no;
    client->live.heard_ns = now_ns();
    int error = 0;
    if (settings->segment < 1 || settings->input_count < 1 || settings->output_count < 1 ||
        settings->input_count > SHUNTER_MAX_TENSORS ||
        settings->output_count > SHUNTER_MAX_TENSORS) {
        error = -EINVAL;
    } else {
        error = shunter_make_plan(
            &client->inputs, client->settings.input_bytes, settings->input_count,
            settings->segment);
        error = error ? error
                      : shunter_make_plan(
                            &client->outputs, client->settings.output_bytes,
                            settings->output_count, settings->segment);
    }
    if (!error) {
        client->headers = calloc(client->inputs.count, sizeof *client->headers);
        client->pieces = calloc((size_t)2 * client->inputs.count, sizeof *client->pieces);
        client->spill = malloc((size_t)PADS * SPILL);
        client->aside = malloc((size_t)PADS * SPILL);
        if (!client->headers || !client->pieces || !client->spill || !client->aside) {
            error = -ENOMEM;
        }
    }
    if (error) {
        shunter_client_free(client);
        return error;
    }
    *result = client;
    return 0;
}

void shunter_client_free(struct shunter_client *client) {
    if (client) {
        shunter_gift_close(&client->gift);
        free(client->headers);
        free(client->pieces);
        free(client->spill);
        free(client->aside);
        free(client->kept);
        free(client->hello);
        free(client);
    }
}
