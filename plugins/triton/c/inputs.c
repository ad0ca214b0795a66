/* Where the input of a request lies: copied once, from the server's memory into the pool that workers
 * map. */
#include <string.h>

#include "backend.h"

/* ---- room */

static void add_piece(
    struct shunter_function *function, uint32_t entry, uint32_t number, const uint8_t *at,
    uint32_t length) {
    shunter_pieces_of(&function->queue, entry)[number] = (struct shunter_piece){
        .offset = (uint64_t)(at - function->landing.base), .length = length};
    shunter_set(
        shunter_entry_word(&function->queue, entry, SHUNTER_E_ENTRY_PIECES), number + 1);
}

/* Whole blocks, and what is left together with what is left of others. */
static bool reserve_entry(struct shunter_function *function, uint32_t entry) {
    uint32_t number = 0;
    shunter_set(shunter_entry_word(&function->queue, entry, SHUNTER_E_ENTRY_PIECES), 0);
    for (uint32_t tensor = 0; tensor < function->queue.input_count; tensor++) {
        uint32_t left = function->queue.input_bytes[tensor];
        for (; left >= SHUNTER_BLOCK; left -= SHUNTER_BLOCK, number++) {
            const int32_t block = shunter_block_take(&function->landing);
            if (block < 0) {
                return false;
            }
            const uint8_t *at = shunter_block_at(&function->landing, block);
            add_piece(function, entry, number, at, SHUNTER_BLOCK);
        }
        if (left) {
            const uint8_t *at = shunter_slot_room(&function->landing, &function->slot, left);
            if (!at) {
                return false;
            }
            shunter_block_ref(&function->landing, function->slot.block);
            shunter_slot_use(&function->slot, left);
            add_piece(function, entry, number++, at, left);
        }
    }
    return true;
}

static void let_go(struct shunter_function *function, uint32_t entry) {
    _Atomic uint64_t *count = shunter_entry_word(&function->queue, entry, SHUNTER_E_ENTRY_PIECES);
    const struct shunter_piece *pieces = shunter_pieces_of(&function->queue, entry);
    for (uint64_t i = 0; i < shunter_get(count); i++) {
        const int32_t block = shunter_block_of(&function->landing, pieces[i].offset);
        shunter_block_unref(&function->landing, block);
    }
    shunter_set(count, 0);
}

void shunter_give_back(struct shunter_function *function, struct shunter_call *call) {
    for (int32_t at = call->first; at >= 0;) {
        const int32_t next = function->rows[at].next;
        let_go(function, (uint32_t)at);
        function->rows[at] = (struct shunter_row){.next = -1};
        function->free[function->free_count++] = at;
        at = next;
    }
    call->first = -1;
}

bool shunter_reserve(struct shunter_function *function, struct shunter_call *call) {
    int32_t last = -1;
    if (function->free_count < call->rows) {
        return false;
    }
    for (uint32_t row = 0; row < call->rows; row++) {
        const int32_t entry = function->free[--function->free_count];
        function->rows[entry] = (struct shunter_row){.call = call, .next = -1};
        *(last < 0 ? &call->first : &function->rows[last].next) = entry;
        last = entry;
        if (!reserve_entry(function, (uint32_t)entry)) {
            shunter_give_back(function, call);
            return false;
        }
    }
    call->left = call->rows;
    return true;
}

/* ---- bytes */

/* The buffers of an input, one behind the other. */
struct reader {
    TRITONBACKEND_Input *input;
    uint32_t next;
    const uint8_t *at;
    uint64_t left;
};

static bool read_bytes(struct reader *reader, uint8_t *into, uint64_t size) {
    while (size) {
        if (!reader->left) {
            int memory = TRITON_CPU;
            int64_t memory_id = 0;
            const void *buffer = NULL;
            TRITONSERVER_Error *error = TRITONBACKEND_InputBuffer(
                reader->input, reader->next++, &buffer, &reader->left, &memory, &memory_id);
            reader->at = buffer;
            if (error) {
                TRITONSERVER_ErrorDelete(error);
                return false;
            }
            continue;
        }
        const uint64_t part = size < reader->left ? size : reader->left;
        memcpy(into, reader->at, part);
        into += part;
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
    for (uint32_t tensor = 0; tensor < queue->input_count; tensor++) {
        const uint32_t bytes = queue->input_bytes[tensor];
        const uint32_t count = (bytes + SHUNTER_BLOCK - 1) / SHUNTER_BLOCK;
        struct reader reader = {0};
        TRITONSERVER_Error *error = TRITONBACKEND_RequestInput(
            call->request, function->told.names + 64 * tensor, &reader.input);
        if (error) {
            TRITONSERVER_ErrorDelete(error);
            return false;
        }
        for (int32_t at = call->first; at >= 0; at = function->rows[at].next) {
            const struct shunter_piece *pieces = shunter_pieces_of(queue, (uint32_t)at) + first;
            for (uint32_t i = 0; i < count; i++) {
                uint8_t *into = function->landing.base + pieces[i].offset;
                if (!read_bytes(&reader, into, pieces[i].length)) {
                    return false;
                }
            }
        }
        first += count;
    }
    return true;
}
