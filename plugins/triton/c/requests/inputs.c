/* Where the input of a request lies: copied once, from the server's memory into the pool that workers
 * map. */
#include <string.h>

#include "packed_calls.h"
#include "streams.h"

/* ---- room */

static void add_piece(
    struct shunter_function *function, uint32_t entry, uint32_t number, const uint8_t *at,
    uint32_t length) {
    shunter_pieces_of(&function->queue, entry)[number] = (struct shunter_piece){
        .offset = (uint64_t)(at - function->landing.base), .length = length};
    shunter_set(
        shunter_entry_word(&function->queue, entry, SHUNTER_E_ENTRY_PIECES), number + 1);
    function->rows[entry].pieces = (uint16_t)(number + 1);
}

/* Whole blocks, and what is left together with what is left of others. */
static bool reserve_bytes(
    struct shunter_function *function, uint32_t entry, uint32_t left, uint32_t *number) {
    for (; left >= SHUNTER_BLOCK; left -= SHUNTER_BLOCK) {
        const int32_t block = shunter_block_take(&function->landing);
        if (block < 0) {
            return false;
        }
        const uint8_t *at = shunter_block_at(&function->landing, block);
        add_piece(function, entry, (*number)++, at, SHUNTER_BLOCK);
    }
    if (left) {
        const uint8_t *at = shunter_slot_room(&function->landing, &function->slot, left);
        if (!at) {
            return false;
        }
        shunter_block_ref(&function->landing, function->slot.block);
        shunter_slot_use(&function->slot, left);
        add_piece(function, entry, (*number)++, at, left);
    }
    return true;
}

/* ``run``: the row of what it is, where the function is packed. */
static bool reserve_entry(
    struct shunter_function *function, uint32_t entry, const uint64_t *run) {
    const struct shunter_queue *queue = &function->queue;
    uint32_t number = 0;
    shunter_set(shunter_entry_word(queue, entry, SHUNTER_E_ENTRY_PIECES), 0);
    if (run) {
        const uint64_t bytes = shunter_run_bytes(&function->requests.packed, run);
        return reserve_bytes(function, entry, (uint32_t)bytes, &number);
    }
    for (uint32_t tensor = 0; tensor < queue->input_count; tensor++) {
        if (!reserve_bytes(function, entry, queue->input_bytes[tensor], &number)) {
            return false;
        }
    }
    return true;
}

/* Their number is the row's: workers may write to that of the page. */
static void free_pieces(struct shunter_function *function, uint32_t entry) {
    const struct shunter_piece *pieces = shunter_pieces_of(&function->queue, entry);
    for (uint32_t i = 0; i < function->rows[entry].pieces; i++) {
        const int32_t block = shunter_block_of(&function->landing, pieces[i].offset);
        shunter_block_unref(&function->landing, block);
    }
    shunter_set(shunter_entry_word(&function->queue, entry, SHUNTER_E_ENTRY_PIECES), 0);
}

void shunter_give_back(struct shunter_function *function, struct shunter_call *call) {
    for (int32_t at = call->first; at >= 0;) {
        const int32_t next = function->rows[at].next;
        free_pieces(function, (uint32_t)at);
        function->rows[at] = (struct shunter_row){.next = -1};
        if (function->streams) {
            shunter_stream_gives_places_back(function, (uint32_t)at);
        }
        function->free[function->free_count++] = at;
        at = next;
    }
    call->first = -1;
}

bool shunter_reserve(struct shunter_function *function, struct shunter_call *call) {
    const uint32_t words = shunter_packed_words(&function->requests.packed);
    int32_t last = -1;
    const uint32_t places = function->streams ? SHUNTER_STREAM_PLACES : 0;
    if (function->free_count < call->entries * (1 + places)) {
        return false;
    }
    for (uint32_t row = 0; row < call->entries; row++) {
        const int32_t entry = function->free[--function->free_count];
        function->rows[entry] = (struct shunter_row){.call = call, .next = -1};
        *(last < 0 ? &call->first : &function->rows[last].next) = entry;
        last = entry;
        if (function->streams) {
            shunter_stream_takes_places(function, (uint32_t)entry);
        }
        const uint64_t *run = call->runs ? call->runs + (size_t)row * words : NULL;
        if (!reserve_entry(function, (uint32_t)entry, run)) {
            shunter_give_back(function, call);
            return false;
        }
    }
    call->left = call->entries;
    return true;
}

/* ---- bytes */

static bool is_there(TRITONSERVER_Error *error) {
    if (error) {
        TRITONSERVER_ErrorDelete(error);
    }
    return !error;
}

bool shunter_open_input(
    const struct shunter_function *function, const struct shunter_call *call, uint32_t tensor,
    struct shunter_reader *reader) {
    *reader = (struct shunter_reader){0};
    if (!is_there(TRITONBACKEND_RequestInput(
            call->request, function->told.names + 64 * tensor, &reader->input))) {
        const uint32_t sequence = function->sequence[tensor];
        reader->missing = !sequence && shunter_is_optional(function, tensor);
        if (sequence) { // of little-endian words, so that a bool is the first byte
            reader->repeats = (const uint8_t *)&call->sequence[sequence - 1];
            reader->repeats_bytes = sequence == SHUNTER_SEQUENCE_ID ? sizeof(uint64_t) : 1;
        }
        return reader->missing || sequence;
    }
    return is_there(TRITONBACKEND_InputProperties(
        reader->input, NULL, NULL, NULL, NULL, NULL, &reader->count));
}

bool shunter_read_bytes(struct shunter_reader *reader, uint8_t *into, uint64_t size) {
    if (reader->missing && into) {
        memset(into, 0, size);
    }
    while (size && !reader->missing) {
        if (!reader->left && reader->repeats) {
            reader->at = reader->repeats;
            reader->left = reader->repeats_bytes;
        }
        if (!reader->left) {
            int memory = TRITON_CPU;
            int64_t memory_id = 0;
            const void *buffer = NULL;
            if (reader->next >= reader->count ||
                !is_there(TRITONBACKEND_InputBuffer(
                    reader->input, reader->next++, &buffer, &reader->left, &memory,
                    &memory_id))) {
                reader->left = 0;
                return false;
            }
            reader->at = buffer;
            continue;
        }
        const uint64_t part = size < reader->left ? size : reader->left;
        if (into) {
            memcpy(into, reader->at, part);
            into += part;
        }
        reader->at += part;
        reader->left -= part;
        size -= part;
    }
    return true;
}

/* Tensor by tensor, since each has buffers of its own; of each entry some pieces are a tensor's. */
bool shunter_fill(const struct shunter_function *function, struct shunter_call *call) {
    const struct shunter_queue *queue = &function->queue;
    uint32_t first = 0; /* piece of the tensor */
    if (call->runs) {
        return shunter_fill_runs(function, call);
    }
    for (uint32_t tensor = 0; tensor < queue->input_count; tensor++) {
        const uint32_t bytes = queue->input_bytes[tensor];
        const uint32_t count = (bytes + SHUNTER_BLOCK - 1) / SHUNTER_BLOCK;
        struct shunter_reader reader;
        if (!shunter_open_input(function, call, tensor, &reader)) {
            return false;
        }
        for (int32_t at = call->first; at >= 0; at = function->rows[at].next) {
            const struct shunter_piece *pieces = shunter_pieces_of(queue, (uint32_t)at) + first;
            for (uint32_t i = 0; i < count; i++) {
                uint8_t *into = function->landing.base + pieces[i].offset;
                if (!shunter_read_bytes(&reader, into, pieces[i].length)) {
                    return false;
                }
            }
        }
        first += count;
    }
    return true;
}
