#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "client_parts.h"

struct landed {
    const uint8_t *header;
    uint8_t *payload;
    uint32_t length; /* of the payload, with what is behind it */
};

/* How many segments of an answer may come next, as far as it is known, and where each belongs. */
static uint32_t expected(const struct shunter_client *client, const struct shunter_call *call) {
    if (shunter_call_has_no_answer(client, call)) {
        return 0;
    }
    return call->answer_count ? call->answer_count : 1;
}

static struct shunter_segment expected_segment(
    const struct shunter_client *client, const struct shunter_call *call, uint32_t seq) {
    const uint32_t most = client->settings.output_bytes[0];
    return !shunter_client_is_packed(client)
        ? shunter_place(&client->outputs, seq)
        : shunter_run_place(
              call->answer_count ? call->answer_bytes : most, client->outputs.segment, seq);
}

/* Pieces for the next datagrams; where a payload lands that comes in turn and is not encrypted. */
static void lay_out(struct shunter_client *client, struct iovec (*pieces)[3]) {
    uint64_t req_id =
        shunter_client_encrypts(client) ? client->live.next_id : client->live.below;
    uint32_t seq = 0;
    for (uint32_t m = 0; m < SHUNTER_CLIENT_PADS; m++) {
        struct iovec into = {NULL, 0};
        while (req_id < client->live.next_id) {
            const struct shunter_call *call = shunter_call_of(client, req_id);
            while (call && seq < expected(client, call) &&
                   call->received[seq / 8] >> seq % 8 & 1) {
                seq++;
            }
            if (call && seq < expected(client, call)) {
                const struct shunter_segment segment = expected_segment(client, call, seq++);
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
        pieces[m][2] = (struct iovec){
            client->spill + (size_t)m * SHUNTER_CLIENT_SPILL, SHUNTER_CLIENT_SPILL};
    }
}

/* Payloads that wait may lie where an earlier one belongs. */
static void set_aside(struct shunter_client *client, struct landed *landed, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
        uint8_t *at = client->aside + (size_t)i * SHUNTER_CLIENT_SPILL;
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
    bool aside = shunter_client_encrypts(client); // none lies where another belongs
    for (uint32_t i = 0; i < count; i++) {
        struct shunter_x64 header;
        uint8_t *place = NULL;
        memcpy(&header, landed[i].header, sizeof header);
        if (header.type == SHUNTER_TYPE_HELLO_ACK) {
            keep_hello(client, &landed[i]);
            continue;
        }
        if (header.type == SHUNTER_TYPE_ERROR && header.session == client->settings.session &&
            header.status == SHUNTER_STATUS_UNKNOWN_SESSION) {
            client->live.unknown_ns = now; // it has no tag: anybody may have said so
            continue;
        }
        if (!shunter_call_is_ours(client, &header) ||
            header.length + shunter_behind(header.flags) != landed[i].length) {
            continue;
        }
        client->live.heard_ns = now;
        shunter_call_heed_credit(client, &header);
        if (!shunter_call_place(client, &header, &place)) {
            const int error = shunter_call_heed(client, &header, landed[i].payload, now);
            if (error) {
                return error;
            }
            continue;
        }
        if (!shunter_client_is_right(client, &header, landed[i].header, landed[i].payload)) {
            continue; // as if it were lost
        }
        if (place && place != landed[i].payload) {
            if (!aside) {
                set_aside(client, landed + i + 1, count - i - 1);
                aside = true;
            }
            memmove(place, landed[i].payload, header.length);
            client->live.copied += header.length;
        }
        shunter_call_received(client, &header, now);
    }
    return 0;
}

int shunter_client_receive_datagrams(struct shunter_client *client) {
    struct iovec pieces[SHUNTER_CLIENT_PADS][3];
    struct mmsghdr messages[SHUNTER_CLIENT_PADS];
    struct landed landed[SHUNTER_CLIENT_PADS];
    lay_out(client, pieces);
    for (uint32_t m = 0; m < SHUNTER_CLIENT_PADS; m++) {
        messages[m] = (struct mmsghdr){.msg_hdr = {.msg_iov = pieces[m], .msg_iovlen = 3}};
    }
    const int came =
        recvmmsg(client->settings.socket, messages, SHUNTER_CLIENT_PADS, MSG_DONTWAIT, NULL);
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
        *found = (struct landed){
            client->heads[m], pieces[m][1].iov_base, length - SHUNTER_HEADER_BYTES};
        if (found->length > room) { // it went on into the spill
            uint8_t *at = pieces[m][2].iov_base;
            const size_t behind = found->length - room;
            if (room + behind > SHUNTER_CLIENT_SPILL) {
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
    const int error = take_in(client, landed, count, shunter_client_now_ns());
    return error ? error : came;
}

/* ---- streams */

/* What follows a header on a stream: its payload, or something to be thrown away. */
static int begin_payload(struct shunter_client *client) {
    if (!shunter_call_is_ours(client, &client->head)) {
        return -EPROTO;
    }
    client->live.heard_ns = shunter_client_now_ns();
    shunter_call_heed_credit(client, &client->head);
    client->into = NULL;
    client->left = client->head.length + shunter_behind(client->head.flags);
    uint8_t *place = NULL;
    if (!shunter_client_encrypts(client) && shunter_call_place(client, &client->head, &place)) {
        client->into = place;
    }
    return 0;
}

static int end_payload(struct shunter_client *client) {
    uint8_t *place = NULL;
    client->have = 0;
    client->live.packets++;
    if (shunter_call_place(client, &client->head, &place)) {
        uint8_t *payload = shunter_client_encrypts(client) ? client->spill : place;
        if (shunter_client_is_right(client, &client->head, &client->head, payload)) {
            if (place && place != payload) {
                memcpy(place, payload, client->head.length);
                client->live.copied += client->head.length;
            }
            shunter_call_received(client, &client->head, shunter_client_now_ns());
        }
        return 0;
    }
    return shunter_call_heed(client, &client->head, client->spill, shunter_client_now_ns());
}

int shunter_client_receive_stream(struct shunter_client *client) {
    int count = 0;
    for (;;) {
        const bool in_head = client->have < SHUNTER_HEADER_BYTES;
        uint8_t *into = in_head ? (uint8_t *)&client->head + client->have
            : client->into      ? client->into
                                : client->spill + client->head.length +
                shunter_behind(client->head.flags) - client->left;
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
