/* Requests as runs of bytes: laid out while they are read, then written once, into the pool. */
#include <stdlib.h>
#include <string.h>

#include "backend.h"

/* ---- forms */

static void make_form(
    struct shunter_form *form, const struct control_function *told, uint32_t first,
    uint32_t count) {
    struct shunter_packed *packed = &form->packed;
    *packed = (struct shunter_packed){
        .count = count,
        .most_rows = SHUNTER_MAX_ROWS,
        .most_bytes = SHUNTER_PACKED_MOST,
        .item = form->item,
        .ndim = form->ndim,
        .shape = form->shape};
    for (uint32_t t = 0; t < count; t++) {
        form->item[t] = (uint32_t)told->bytes[first + t];
        form->ndim[t] = (uint32_t)told->dims[first + t];
        memcpy(
            form->shape + packed->dims, told->shape + (first + t) * SHUNTER_CONTROL_DIMS,
            form->ndim[t] * sizeof *form->shape);
        packed->dims += form->ndim[t];
    }
    packed->header = (uint32_t)shunter_packed_up(8 + 8 * count + 4 * packed->dims);
}

void shunter_make_forms(struct shunter_function *function, const struct control_function *told) {
    if (told->packed) {
        make_form(&function->requests, told, 0, (uint32_t)told->inputs);
        make_form(&function->answers, told, SHUNTER_MAX_TENSORS, (uint32_t)told->outputs);
        function->most_rows = SHUNTER_MAX_ROWS; // until a worker says less
    }
}

/* ---- places */

/* Bytes of the next so many texts of an input; false when it has not so many. */
static bool pass_texts(struct shunter_reader *reader, uint64_t count, uint64_t *bytes) {
    *bytes = 0;
    for (uint64_t i = 0; i < count; i++) {
        uint32_t length;
        if (!shunter_read_bytes(reader, (uint8_t *)&length, sizeof length) ||
            !shunter_read_bytes(reader, NULL, length)) {
            return false;
        }
        *bytes += sizeof length + (uint64_t)length;
    }
    return true;
}

/* The bytes of a tensor of ``size`` in each entry, and its dimensions. */
static bool divide(
    const struct shunter_function *function, const struct shunter_call *call, uint32_t tensor,
    const int64_t *shape, uint64_t size, uint32_t dim) {
    const struct shunter_packed *packed = &function->requests.packed;
    const uint32_t words = shunter_packed_words(packed);
    const bool has_texts = !packed->item[tensor] && call->entries > 1;
    struct shunter_reader reader = {0};
    uint64_t texts = 1, found = 0;
    for (uint32_t d = 0; d < packed->ndim[tensor]; d++) {
        texts *= (uint64_t)shape[d];
    }
    if (has_texts && !shunter_open_input(function, call, tensor, &reader)) {
        return false;
    }
    for (uint32_t i = 0; i < call->entries; i++) {
        uint64_t *row = call->runs + (size_t)i * words;
        uint64_t *bytes = row + 2 + 2 * tensor;
        *bytes = size / call->entries;
        if (has_texts && !pass_texts(&reader, texts, bytes)) {
            return false;
        }
        found += *bytes;
        for (uint32_t d = 0; d < packed->ndim[tensor]; d++) {
            row[1 + 2 * packed->count + dim + d] = (uint64_t)shape[d];
        }
    }
    return found == size;
}

static bool divide_all(const struct shunter_function *function, struct shunter_call *call) {
    uint32_t dim = 0;
    for (uint32_t tensor = 0; tensor < function->told.inputs; tensor++) {
        const char *name = function->told.names + 64 * tensor;
        TRITONBACKEND_Input *input = NULL;
        const int64_t *shape = NULL;
        uint32_t dims = 0, buffers = 0;
        uint64_t bytes = 0;
        int dtype = 0;
        TRITONSERVER_Error *error = TRITONBACKEND_RequestInput(call->request, name, &input);
        error = error ? error
                      : TRITONBACKEND_InputProperties(
                            input, NULL, &dtype, &shape, &dims, &bytes, &buffers);
        const bool is_missing = !input && shunter_is_optional(function, tensor);
        const bool is_wrong = error && !is_missing;
        if (error) {
            TRITONSERVER_ErrorDelete(error);
        }
        if (is_missing) { // a length of 0 in each
            bytes = (uint64_t)SHUNTER_STRING_LENGTH * call->entries;
        }
        if (is_wrong) {
            return shunter_wrong(call, SHUNTER_END_WRONG, "input '%s' is missing", name);
        }
        if (!divide(
                function, call, tensor, is_missing ? NULL : shape + call->has_batch, bytes, dim)) {
            return shunter_wrong(
                call, SHUNTER_END_WRONG,
                "input '%s': its byte strings are not exactly its %llu bytes", name,
                (unsigned long long)bytes);
        }
        dim += function->requests.packed.ndim[tensor];
    }
    return true;
}

bool shunter_lay_out(const struct shunter_function *function, struct shunter_call *call) {
    const struct shunter_packed *packed = &function->requests.packed;
    const uint32_t words = shunter_packed_words(packed);
    call->runs = calloc((size_t)call->entries * words, sizeof *call->runs);
    if (!call->runs) {
        abort(); // as the server itself does without memory
    }
    if (!divide_all(function, call)) {
        return false;
    }
    for (uint32_t i = 0; i < call->entries; i++) {
        uint64_t *row = call->runs + (size_t)i * words;
        row[0] = shunter_rows_each(function, call);
        const uint64_t bytes = shunter_run_places(packed, row);
        if (bytes > function->told.request_bytes) {
            return shunter_wrong(
                call, SHUNTER_END_WRONG,
                "%llu bytes with its header; the model takes up to %llu in a request "
                "(request_bytes)",
                (unsigned long long)bytes, (unsigned long long)function->told.request_bytes);
        }
    }
    return true;
}

/* ---- bytes */

/* To a place in a run, of which all pieces but the last are whole blocks. */
static bool write_at(
    const struct shunter_function *function, const struct shunter_piece *pieces, uint64_t at,
    uint64_t size, struct shunter_reader *reader) {
    while (size) {
        const struct shunter_piece *piece = pieces + at / SHUNTER_BLOCK;
        const uint64_t inside = at % SHUNTER_BLOCK, left = piece->length - inside;
        const uint64_t part = size < left ? size : left;
        if (!shunter_read_bytes(reader, function->landing.base + piece->offset + inside, part)) {
            return false;
        }
        at += part;
        size -= part;
    }
    return true;
}

/* Between tensors there is nothing; a gap is in one block, as both are aligned. */
static void clear_gap(
    const struct shunter_function *function, const struct shunter_piece *pieces, uint64_t at,
    uint64_t end) {
    if (at < end) {
        memset(
            function->landing.base + pieces[at / SHUNTER_BLOCK].offset + at % SHUNTER_BLOCK, 0,
            end - at);
    }
}

static void write_heads(const struct shunter_function *function, const struct shunter_call *call) {
    const struct shunter_packed *packed = &function->requests.packed;
    const uint64_t *row = call->runs;
    for (int32_t at = call->first; at >= 0; at = function->rows[at].next) {
        const struct shunter_queue *queue = &function->queue;
        const uint32_t entry = (uint32_t)at;
        shunter_run_head(
            packed, row, function->landing.base + shunter_pieces_of(queue, entry)->offset);
        shunter_set(
            shunter_entry_word(queue, entry, SHUNTER_E_ENTRY_BYTES),
            shunter_run_bytes(packed, row));
        // What a worker answers without writing it would be another's.
        shunter_set(shunter_entry_word(queue, entry, SHUNTER_E_ENTRY_RESULT_BYTES), 0);
        row += shunter_packed_words(packed);
    }
}

bool shunter_fill_runs(const struct shunter_function *function, struct shunter_call *call) {
    const struct shunter_packed *packed = &function->requests.packed;
    write_heads(function, call);
    for (uint32_t tensor = 0; tensor < packed->count; tensor++) {
        const uint64_t *place = call->runs + 1 + 2 * tensor;
        struct shunter_reader reader;
        if (!shunter_open_input(function, call, tensor, &reader)) {
            return false;
        }
        for (int32_t at = call->first; at >= 0; at = function->rows[at].next) {
            const struct shunter_piece *pieces =
                shunter_pieces_of(&function->queue, (uint32_t)at);
            if (!write_at(function, pieces, place[0], place[1], &reader)) {
                return false;
            }
            if (tensor + 1 < packed->count) {
                clear_gap(function, pieces, place[0] + place[1], place[2]);
            }
            place += shunter_packed_words(packed);
        }
    }
    return true;
}
