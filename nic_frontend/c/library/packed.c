/* Requests and answers that are one run of bytes, as batching/c/packed/packed_run.h has them. */
#define _GNU_SOURCE
#include <errno.h>
#include <string.h>

#include "hello.h"

_Static_assert(SHUNTER_PACKED_ALIGN == SHUNTER_SHARED_ALIGN, "places in shared memory");
_Static_assert(SHUNTER_MOST_DIMENSIONS == SHUNTER_MAX_DIMS, "dimensions");

/* ---- bytes of tensors */

uint64_t shunter_item_bytes(const char *dtype) {
    static const struct {
        const char *name;
        uint64_t bytes;
    } KNOWN[] = {{"bool", 1},     {"int8", 1},      {"uint8", 1},     {"int16", 2},
                 {"uint16", 2},   {"float16", 2},   {"bfloat16", 2},  {"int32", 4},
                 {"uint32", 4},   {"float32", 4},   {"int64", 8},     {"uint64", 8},
                 {"float64", 8},  {"complex64", 8}, {"complex128", 16},
                 {"bytes", 0},    {"float8_e4m3fn", 1}, {"float8_e5m2", 1}};
    for (size_t i = 0; i < sizeof KNOWN / sizeof *KNOWN; i++) {
        if (!strcmp(dtype, KNOWN[i].name)) {
            return KNOWN[i].bytes;
        }
    }
    return UINT64_MAX;
}

bool shunter_set_bytes(struct shunter_tensor *tensor) {
    const uint64_t item = shunter_item_bytes(tensor->dtype);
    uint64_t least = item ? item : SHUNTER_STRING_LENGTH;
    for (uint32_t i = 0; i < tensor->dimensions; i++) {
        least *= tensor->shape[i] == SHUNTER_ANY ? 0 : tensor->shape[i];
        if (least > UINT32_MAX) {
            return false;
        }
    }
    tensor->bytes = item ? least : 0;
    return least <= UINT32_MAX;
}

bool shunter_varies(const struct shunter_tensor *tensors, unsigned count) {
    for (unsigned i = 0; i < count; i++) {
        bool any = !shunter_item_bytes(tensors[i].dtype);
        for (uint32_t d = 0; d < tensors[i].dimensions; d++) {
            any |= tensors[i].shape[d] == SHUNTER_ANY;
        }
        if (any) {
            return true;
        }
    }
    return false;
}

void shunter_make_side(
    struct shunter_side *side, const struct shunter_tensor *tensors, unsigned count,
    uint32_t most_rows) {
    struct shunter_packed *packed = &side->packed;
    *packed = (struct shunter_packed){
        .count = count,
        .most_rows = most_rows,
        .most_bytes = SHUNTER_PACKED_MOST,
        .item = side->item,
        .ndim = side->ndim,
        .shape = side->shape};
    for (unsigned i = 0; i < count; i++) {
        side->item[i] = (uint32_t)shunter_item_bytes(tensors[i].dtype);
        side->ndim[i] = tensors[i].dimensions;
        for (uint32_t d = 0; d < tensors[i].dimensions; d++) { // SHUNTER_ANY becomes -1
            side->shape[packed->dims++] = (int64_t)tensors[i].shape[d];
        }
    }
    packed->header = (uint32_t)shunter_packed_header(count, packed->dims);
}

uint64_t shunter_least_run(const struct shunter_tensor *tensors, unsigned count) {
    uint32_t dimensions = 0;
    for (unsigned i = 0; i < count; i++) {
        dimensions += tensors[i].dimensions;
    }
    uint64_t end = shunter_packed_header(count, dimensions);
    for (unsigned i = 0; i < count; i++) {
        uint64_t least = shunter_item_bytes(tensors[i].dtype);
        least = least ? least : SHUNTER_STRING_LENGTH;
        for (uint32_t d = 0; d < tensors[i].dimensions; d++) {
            least *= tensors[i].shape[d] == SHUNTER_ANY ? 0 : tensors[i].shape[d];
        }
        end = shunter_packed_up(end) + least;
    }
    return end;
}

/* ---- one tensor */

/* Whether the array has a shape that the tensor may have; its elements. */
static bool has_shape(
    const struct shunter_tensor *tensor, const struct shunter_array *array, bool batched,
    uint64_t *elements) {
    const uint64_t *shape = array->shape + batched;
    *elements = batched ? array->shape[0] : 1;
    for (uint32_t d = 0; d < tensor->dimensions; d++) {
        if (shape[d] > UINT32_MAX ||
            (tensor->shape[d] != SHUNTER_ANY && shape[d] != tensor->shape[d]) ||
            __builtin_mul_overflow(*elements, shape[d], elements)) {
            return false;
        }
    }
    return *elements <= UINT32_MAX;
}

/* Whether it has as many bytes as its elements need. */
static bool has_bytes(
    const struct shunter_tensor *tensor, const struct shunter_array *array, uint64_t elements) {
    const uint64_t item = shunter_item_bytes(tensor->dtype);
    return item ? array->bytes == elements * item : array->bytes >= SHUNTER_STRING_LENGTH * elements;
}

/* ---- runs */

/* The rows that all arrays have, 0: they differ, or there are too many. */
static uint32_t rows_of(
    const struct shunter_packing *packing, const struct shunter_array *arrays, unsigned count) {
    if (!packing->batched) {
        return 1;
    }
    for (unsigned i = 1; i < count; i++) {
        if (arrays[i].shape[0] != arrays[0].shape[0]) {
            return 0;
        }
    }
    return arrays[0].shape[0] <= packing->rows ? (uint32_t)arrays[0].shape[0] : 0;
}

/* Tensors at their places, those that have data. */
static void put(
    const struct shunter_packed *packed, const uint64_t *row, struct shunter_array *inputs,
    uint8_t *run) {
    uint64_t end = packed->header;
    shunter_run_head(packed, row, run);
    for (uint32_t i = 0; i < packed->count; i++) {
        uint8_t *place = run + row[1 + 2 * i];
        memset(run + end, 0, row[1 + 2 * i] - end);
        end = row[1 + 2 * i] + inputs[i].bytes;
        if (!inputs[i].data) {
            inputs[i].data = place;
        } else if (inputs[i].bytes) {
            memcpy(place, inputs[i].data, inputs[i].bytes);
        }
    }
}

int64_t shunter_pack(
    const shunter_session *session, struct shunter_array *inputs, void *run, size_t room) {
    const struct shunter_tensors *tensors = &session->tensors;
    const struct shunter_packed *packed = &session->requests.packed;
    const unsigned count = tensors->input_count;
    const uint32_t rows = tensors->packed ? rows_of(&tensors->packing, inputs, count) : 0;
    uint64_t row[SHUNTER_MOST_WORDS], *dimensions = row + 1 + 2 * count;
    row[0] = rows;
    for (unsigned i = 0; i < count; i++) {
        const struct shunter_tensor *tensor = &tensors->inputs[i];
        uint64_t elements;
        if (!rows || !has_shape(tensor, &inputs[i], tensors->packing.batched, &elements)) {
            return -EINVAL;
        }
        const uint64_t item = shunter_item_bytes(tensor->dtype);
        inputs[i].bytes = item ? elements * item : inputs[i].bytes;
        if (!has_bytes(tensor, &inputs[i], elements)) {
            return -EINVAL;
        }
        if (inputs[i].bytes > tensors->packing.request_bytes) {
            return -EMSGSIZE;
        }
        row[2 + 2 * i] = inputs[i].bytes;
        for (uint32_t d = 0; d < tensor->dimensions; d++) {
            *dimensions++ = inputs[i].shape[d + (tensors->packing.batched != 0)];
        }
    }
    const uint64_t bytes = shunter_run_places(packed, row);
    if (bytes > tensors->packing.request_bytes) {
        return -EMSGSIZE;
    }
    if (bytes <= room) {
        put(packed, row, inputs, run);
    }
    return (int64_t)bytes;
}

int shunter_unpack(
    const shunter_session *session, const void *run, size_t bytes, struct shunter_array *outputs) {
    const struct shunter_tensors *tensors = &session->tensors;
    const struct shunter_packed *packed = &session->answers.packed;
    const unsigned count = tensors->output_count;
    uint64_t row[SHUNTER_MOST_WORDS];
    const uint64_t *dimensions = row + 1 + 2 * count;
    uint32_t rows;
    if (!tensors->packed || bytes < packed->header) {
        return -EPROTO;
    }
    memcpy(&rows, run, sizeof rows);
    if (!shunter_run_parse(packed, run, bytes, rows, row)) {
        return -EPROTO;
    }
    for (unsigned i = 0; i < count; i++) {
        outputs[i].data = (uint8_t *)(uintptr_t)run + row[1 + 2 * i];
        outputs[i].bytes = row[2 + 2 * i];
        outputs[i].shape[0] = rows; // or it is the first size
        for (uint32_t d = 0; d < tensors->outputs[i].dimensions; d++) {
            outputs[i].shape[d + (tensors->packing.batched != 0)] = *dimensions++;
        }
    }
    return (int)rows;
}

const char *shunter_next_string(
    const struct shunter_array *tensor, uint64_t *at, uint32_t *length) {
    if (tensor->bytes < 4 || *at > tensor->bytes - 4) {
        return NULL;
    }
    memcpy(length, (const uint8_t *)tensor->data + *at, sizeof *length);
    if (*length > tensor->bytes - 4 - *at) {
        return NULL;
    }
    const char *found = (const char *)tensor->data + *at + 4;
    *at += 4 + (uint64_t)*length;
    return found;
}
