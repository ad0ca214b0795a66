/* Requests and answers that are one run of bytes: batching/queue/packed.py says the same in Python. */
#define _GNU_SOURCE
#include <errno.h>
#include <string.h>

#include "hello.h"

#define ALIGN 64u
#define HEAD 8u /* rows, and 0 */

_Static_assert(ALIGN == SHUNTER_SHARED_ALIGN, "places in shared memory");

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

#define STRING_LENGTH 4u /* bytes before a byte string */

bool shunter_set_bytes(struct shunter_tensor *tensor) {
    const uint64_t item = shunter_item_bytes(tensor->dtype);
    uint64_t least = item ? item : STRING_LENGTH;
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

static uint64_t up(uint64_t size) { return (size + ALIGN - 1) / ALIGN * ALIGN; }

static uint64_t head_bytes(const struct shunter_tensor *tensors, unsigned count) {
    uint64_t dimensions = 0;
    for (unsigned i = 0; i < count; i++) {
        dimensions += tensors[i].dimensions;
    }
    return up(HEAD + 8u * count + 4 * dimensions);
}

uint64_t shunter_least_run(const struct shunter_tensor *tensors, unsigned count) {
    uint64_t end = head_bytes(tensors, count);
    for (unsigned i = 0; i < count; i++) {
        uint64_t least = shunter_item_bytes(tensors[i].dtype);
        least = least ? least : STRING_LENGTH;
        for (uint32_t d = 0; d < tensors[i].dimensions; d++) {
            least *= tensors[i].shape[d] == SHUNTER_ANY ? 0 : tensors[i].shape[d];
        }
        end = up(end) + least;
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
    return item ? array->bytes == elements * item : array->bytes >= 4 * elements;
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

static void write_head(
    const struct shunter_tensors *tensors, const struct shunter_array *arrays, uint32_t rows,
    uint8_t *run) {
    uint8_t *at = run + HEAD;
    memset(run, 0, head_bytes(tensors->inputs, tensors->input_count));
    memcpy(run, &rows, sizeof rows);
    for (unsigned i = 0; i < tensors->input_count; i++, at += 8) {
        memcpy(at, &arrays[i].bytes, 8);
    }
    for (unsigned i = 0; i < tensors->input_count; i++) {
        for (uint32_t d = 0; d < tensors->inputs[i].dimensions; d++, at += 4) {
            const uint32_t size = (uint32_t)arrays[i].shape[d + (tensors->packing.batched != 0)];
            memcpy(at, &size, sizeof size);
        }
    }
}

int64_t shunter_pack(
    const shunter_session *session, struct shunter_array *inputs, void *run, size_t room) {
    const struct shunter_tensors *tensors = &session->tensors;
    const unsigned count = tensors->input_count;
    const uint32_t rows = tensors->packed ? rows_of(&tensors->packing, inputs, count) : 0;
    uint64_t end = head_bytes(tensors->inputs, count);
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
        end = up(end) + inputs[i].bytes;
    }
    if (end > tensors->packing.request_bytes) {
        return -EMSGSIZE;
    }
    if (end > room) {
        return (int64_t)end;
    }
    write_head(tensors, inputs, rows, run);
    end = head_bytes(tensors->inputs, count);
    for (unsigned i = 0; i < count; i++) {
        uint8_t *place = (uint8_t *)run + up(end);
        memset((uint8_t *)run + end, 0, up(end) - end);
        end = up(end) + inputs[i].bytes;
        if (!inputs[i].data) {
            inputs[i].data = place;
        } else if (inputs[i].bytes) {
            memcpy(place, inputs[i].data, inputs[i].bytes);
        }
    }
    return (int64_t)end;
}

int shunter_unpack(
    const shunter_session *session, const void *run, size_t bytes, struct shunter_array *outputs) {
    const struct shunter_tensors *tensors = &session->tensors;
    const unsigned count = tensors->output_count;
    const bool batched = tensors->packing.batched;
    uint64_t end = head_bytes(tensors->outputs, count);
    const uint8_t *sizes = (const uint8_t *)run + HEAD, *dimensions = sizes + 8 * count;
    uint32_t rows;
    if (!tensors->packed || bytes < end) {
        return -EPROTO;
    }
    memcpy(&rows, run, sizeof rows);
    if (!rows || rows > INT32_MAX || (rows != 1 && !batched)) {
        return -EPROTO;
    }
    for (unsigned i = 0; i < count; i++) {
        const struct shunter_tensor *tensor = &tensors->outputs[i];
        struct shunter_array *output = &outputs[i];
        uint64_t elements;
        memcpy(&output->bytes, sizes + 8 * i, 8);
        output->shape[0] = rows; // or it is the first size
        for (uint32_t d = 0; d < tensor->dimensions; d++, dimensions += 4) {
            uint32_t size;
            memcpy(&size, dimensions, sizeof size);
            output->shape[d + batched] = size;
        }
        if (!has_shape(tensor, output, batched, &elements) ||
            !has_bytes(tensor, output, elements) || output->bytes > bytes ||
            up(end) + output->bytes > bytes) {
            return -EPROTO;
        }
        output->data = (uint8_t *)(uintptr_t)run + up(end);
        end = up(end) + output->bytes;
    }
    return end == bytes ? (int)rows : -EPROTO;
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
