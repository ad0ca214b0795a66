#include "answer.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include "segments.h"
#include "siphash.h"

/* False: it is too long, and the front end sends it. */
static bool send_entry(
    const struct shunter_queue *queue, uint32_t entry, struct shunter_datagrams *datagrams) {
    uint64_t whom[7]; // req_id, session, flags, segment, pkt_no, credit, direct
    memcpy(whom, shunter_entry_bytes(queue, entry, SHUNTER_E_ENTRY_REQ_ID), sizeof whom);
    const uint8_t *peer = shunter_entry_bytes(queue, entry, SHUNTER_E_ENTRY_PEER);
    const bool tagged = whom[2] & SHUNTER_FLAG_HDR_TAG;
    const uint8_t *key = shunter_entry_bytes(queue, entry, SHUNTER_E_ENTRY_KEY);
    const uint32_t *sizes = queue->output_bytes;
    uint32_t run;
    if (shunter_get(shunter_front_end_word(queue, SHUNTER_Q_QUEUE_PACKED))) {
        run = (uint32_t)shunter_get(
            shunter_entry_word(queue, entry, SHUNTER_E_ENTRY_RESULT_BYTES));
        if (run > whom[6] || run > queue->output_bytes[0]) {
            return false;
        }
        sizes = &run;
    }
    struct shunter_plan plan;
    if (whom[3] < 1 || whom[3] > UINT16_MAX ||
        shunter_make_plan(
            &plan, sizes, queue->output_count, (uint32_t)whom[3]) != 0) {
        return true;
    }
    for (uint32_t seq = 0; seq < plan.count; seq++) {
        const struct shunter_segment segment = shunter_place(&plan, seq);
        const size_t size = queue->output_bytes[segment.tensor];
        struct shunter_x64 header = {
            .magic = SHUNTER_WIRE_MAGIC,
            .version = SHUNTER_WIRE_VERSION,
            .type = SHUNTER_TYPE_RESP,
            .flags = (uint16_t)((tagged ? SHUNTER_FLAG_HDR_TAG : 0) |
                                (seq + 1 < plan.count
                                     ? 0
                                     : SHUNTER_FLAG_LAST | (whom[2] & SHUNTER_FLAG_ACK_REQ))),
            .words = SHUNTER_HEADER_BYTES / 8,
            .req_id = whom[0],
            .func_id = (uint16_t)queue->func_id,
            .seq = (uint16_t)seq,
            .count = (uint16_t)plan.count,
            .length = (uint16_t)segment.length,
            .total = sizes[segment.tensor],
            .offset = segment.offset,
            .session = (uint32_t)whom[1],
            .credit = (uint32_t)whom[5],
            .status = SHUNTER_STATUS_OK,
            .tensor = segment.tensor,
            .pkt_no = (uint32_t)whom[4] + seq};
        if (tagged) {
            header.tag = shunter_siphash24(key, &header, SHUNTER_TAG_OFFSET);
        }
        const uint8_t *payload = segment.length
            ? queue->outputs[segment.tensor] + entry * size + segment.offset
            : NULL;
        shunter_datagrams_add(datagrams, &header, payload, segment.length, peer, 0);
    }
    return true;
}

/* Those of its entries that are not answered yet, as far as ``end``; whether the front end has nothing
 * to do for them. */
static int send_until(
    const struct shunter_queue *queue, const struct shunter_batch *batch, uint32_t end,
    const uint16_t *statuses, struct shunter_datagrams *datagrams) {
    int all_good = 1;
    datagrams->error = 0;
    for (uint32_t i = batch->answered; i < end; i++) {
        const uint32_t entry = batch->entries[i];
        // First, so that an answer that was sent is never followed by an error.
        shunter_set(shunter_entry_word(queue, entry, SHUNTER_E_ENTRY_STATUS), statuses[i]);
        if (statuses[i] != SHUNTER_STATUS_OK) {
            all_good = 0;
        } else if (shunter_get(shunter_entry_word(queue, entry, SHUNTER_E_ENTRY_DIRECT))) {
            all_good &= send_entry(queue, entry, datagrams);
        }
    }
    shunter_datagrams_flush(datagrams);
    return all_good;
}

int shunter_worker_answer(
    const struct shunter_queue *queue, uint32_t worker, const struct shunter_batch *batch,
    const uint16_t *statuses, uint8_t *const *from, struct shunter_datagrams *datagrams,
    int front_end_doorbell) {
    const uint64_t sent = datagrams->sent;
    shunter_worker_scatter(queue, batch->entries, batch->count, from);
    const int all_good = send_until(queue, batch, batch->count, statuses, datagrams);
    const int error =
        shunter_worker_done(queue, worker, batch, front_end_doorbell, !all_good);
    if (error) {
        return error;
    }
    return datagrams->error ? datagrams->error : (int)(datagrams->sent - sent);
}

int shunter_worker_answer_early(
    const struct shunter_queue *queue, uint32_t worker, struct shunter_batch *batch,
    uint32_t count, const uint16_t *statuses, struct shunter_datagrams *datagrams,
    int front_end_doorbell) {
    const uint64_t sent = datagrams->sent;
    if (count > batch->count - batch->answered) {
        return -EINVAL;
    }
    const int all_good =
        send_until(queue, batch, batch->answered + count, statuses, datagrams);
    const int error =
        shunter_worker_early(queue, worker, batch, count, front_end_doorbell, !all_good);
    if (error) {
        return error;
    }
    return datagrams->error ? datagrams->error : (int)(datagrams->sent - sent);
}
