/* Answers that are runs of bytes, which a worker has made: nothing of them is believed. */
#include <stdlib.h>
#include <string.h>

#include "backend.h"

#define MOST_HEADER \
    (8 + SHUNTER_MAX_TENSORS * (8 + 4 * SHUNTER_CONTROL_DIMS) + SHUNTER_PACKED_ALIGN)

#define MOST_SAID 1024 /* of a refusal */

static const uint8_t *run_of(const struct shunter_function *function, int32_t entry) {
    return function->queue.outputs[0] + (size_t)entry * function->told.answer_bytes;
}

/* A worker may still write to its run: what is looked at is a copy. */
static bool read_answer(
    const struct shunter_function *function, const struct shunter_call *call, int32_t entry,
    uint64_t *row) {
    const struct shunter_packed *packed = &function->answers.packed;
    const uint64_t bytes = shunter_get(
        shunter_entry_word(&function->queue, (uint32_t)entry, SHUNTER_E_ENTRY_RESULT_BYTES));
    uint8_t header[MOST_HEADER];
    if (bytes < packed->header || bytes > function->told.answer_bytes) {
        return false;
    }
    memcpy(header, run_of(function, entry), packed->header);
    return shunter_run_parse(packed, header, bytes, shunter_rows_each(function, call), row);
}

uint64_t *shunter_read_answers(
    const struct shunter_function *function, const struct shunter_call *call,
    TRITONSERVER_Error **error) {
    const struct shunter_packed *packed = &function->answers.packed;
    const uint32_t words = shunter_packed_words(packed), before = 1 + 2 * packed->count;
    uint64_t *found = calloc((size_t)call->entries * words, sizeof *found), *row = found;
    if (!found) {
        abort(); // as the server itself does without memory
    }
    for (int32_t at = call->first; at >= 0 && !*error; at = function->rows[at].next) {
        if (!read_answer(function, call, at, row)) {
            *error = TRITONSERVER_ErrorNew(
                TRITON_INTERNAL, "the model's worker has answered what is none");
        } else if (memcmp(found + before, row + before, packed->dims * sizeof *row)) {
            *error = TRITONSERVER_ErrorNew(
                TRITON_INVALID_ARG,
                "the answers of its rows have different sizes: ask for each row alone");
        }
        row += words;
    }
    if (*error) {
        free(found);
        return NULL;
    }
    return found;
}

/* What a status of HTTP is for clients of the server. */
static int code_of(uint64_t status) {
    switch (status) {
    case 404:
        return TRITON_NOT_FOUND;
    case 409:
        return TRITON_ALREADY_EXISTS;
    case 429:
    case 503:
        return TRITON_UNAVAILABLE;
    case 501:
        return TRITON_UNSUPPORTED;
    default:
        return status < 500 ? TRITON_INVALID_ARG : TRITON_INTERNAL;
    }
}

TRITONSERVER_Error *shunter_read_refusal(
    const struct shunter_function *function, const struct shunter_call *call) {
    const struct shunter_packed *packed = &function->answers.packed;
    char text[MOST_SAID];
    uint64_t row[shunter_packed_words(packed)];
    for (int32_t at = call->first; at >= 0; at = function->rows[at].next) {
        const uint64_t status = shunter_get(
            shunter_entry_word(&function->queue, (uint32_t)at, SHUNTER_E_ENTRY_STATUS));
        if (status > SHUNTER_ENTRY_SAYS && !packed->item[0] && !packed->ndim[0] &&
            read_answer(function, call, at, row) && row[2] >= SHUNTER_STRING_LENGTH) {
            const uint64_t length = row[2] - SHUNTER_STRING_LENGTH;
            const uint64_t most = length < sizeof text ? length : sizeof text - 1;
            memcpy(text, run_of(function, at) + row[1] + SHUNTER_STRING_LENGTH, most);
            text[most] = 0;
            return TRITONSERVER_ErrorNew(code_of(status - SHUNTER_ENTRY_SAYS), text);
        }
    }
    return NULL;
}

/* The bytes of an output, whose texts must be exactly these. */
static bool copy(
    const struct shunter_function *function, const struct shunter_call *call, uint32_t number,
    const uint64_t *answers, uint64_t texts, uint8_t *into) {
    const struct shunter_packed *packed = &function->answers.packed;
    const uint64_t *place = answers + 1 + 2 * number;
    for (int32_t at = call->first; at >= 0; at = function->rows[at].next) {
        if (place[1]) {
            memcpy(into, run_of(function, at) + place[0], place[1]);
        }
        if (!packed->item[number] && !shunter_run_strings(into, 0, place[1], texts, NULL)) {
            return false;
        }
        into += place[1];
        place += shunter_packed_words(packed);
    }
    return true;
}

TRITONSERVER_Error *shunter_write_run_output(
    const struct shunter_function *function, const struct shunter_call *call,
    TRITONBACKEND_Response *response, uint32_t number, const uint64_t *answers) {
    const struct shunter_packed *packed = &function->answers.packed;
    const uint64_t *dims = answers + 1 + 2 * packed->count;
    int64_t shape[1 + SHUNTER_CONTROL_DIMS] = {call->rows};
    uint64_t texts = shunter_rows_each(function, call), bytes = 0;
    for (uint32_t t = 0; t < number; t++) {
        dims += packed->ndim[t];
    }
    for (uint32_t d = 0; d < packed->ndim[number]; d++) {
        shape[d + call->has_batch] = (int64_t)dims[d];
        texts *= dims[d];
    }
    for (uint32_t i = 0; i < call->entries; i++) {
        bytes += answers[(size_t)i * shunter_packed_words(packed) + 2 + 2 * number];
    }
    uint8_t *room = NULL;
    TRITONSERVER_Error *error =
        shunter_output_room(function, call, response, number, shape, bytes, &room);
    if (!error && bytes && !copy(function, call, number, answers, texts, room)) {
        error = TRITONSERVER_ErrorNew(
            TRITON_INTERNAL, "the model's worker has answered byte strings that are none");
    }
    return error;
}
