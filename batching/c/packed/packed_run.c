#include <string.h>

#include "packed_run.h"

static uint32_t u32_at(const uint8_t *bytes) {
    uint32_t found;
    memcpy(&found, bytes, sizeof found);
    return found;
}

static uint64_t u64_at(const uint8_t *bytes) {
    uint64_t found;
    memcpy(&found, bytes, sizeof found);
    return found;
}

/*
 * Elements of a tensor, whose sizes it writes to ``row``; false when they are not the model's, or
 * beyond what a request can have even if none of them were 0: of byte strings there is a list for
 * each size, however few bytes the request has.
 */
static bool elements_of(
    const uint8_t *dims, const int64_t *shape, uint32_t ndim, uint64_t rows, uint32_t least,
    uint32_t most, uint64_t *row, uint64_t *elements) {
    uint64_t span = rows * least; // each is of 32 bits, and so is what is multiplied below: no wrap
    *elements = rows;
    if (span > most) {
        return false;
    }
    for (uint32_t i = 0; i < ndim; i++) {
        const uint64_t size = u32_at(dims + 4 * i);
        span *= size ? size : 1;
        if ((shape[i] >= 0 && (uint64_t)shape[i] != size) || span > most) {
            return false;
        }
        *elements *= size;
        row[i] = size;
    }
    return true;
}

bool shunter_run_parse(
    const struct shunter_packed *packed, const uint8_t *header, uint64_t bytes, uint64_t rows,
    uint64_t *row) {
    const uint8_t *sizes = header + 8, *dims = sizes + 8 * (size_t)packed->count;
    const int64_t *shape = packed->shape;
    uint64_t at = packed->header, end = at, *places = row + 1;
    uint64_t *found = places + 2 * packed->count;
    if (u32_at(header) != rows || u32_at(header + 4) != 0 || rows < 1 ||
        rows > packed->most_rows) {
        return false;
    }
    for (uint32_t t = 0; t < packed->count; t++) {
        const uint32_t item = packed->item[t], ndim = packed->ndim[t];
        const uint32_t least = item ? item : SHUNTER_STRING_LENGTH;
        const uint64_t size = u64_at(sizes + 8 * (size_t)t);
        uint64_t elements;
        if (!elements_of(
                dims, shape, ndim, rows, least, packed->most_bytes, found, &elements) ||
            size < elements * least || (item && size != elements * item) || at > bytes ||
            size > bytes - at) {
            return false;
        }
        places[2 * t] = at;
        places[2 * t + 1] = size;
        end = at + size;
        at = shunter_packed_up(end);
        dims += 4 * (size_t)ndim;
        shape += ndim;
        found += ndim;
    }
    for (; dims < header + packed->header; dims++) {
        if (*dims) {
            return false;
        }
    }
    row[0] = rows;
    return end == bytes;
}

bool shunter_run_strings(
    const uint8_t *content, uint64_t at, uint64_t end, uint64_t count, uint64_t *places) {
    for (uint64_t i = 0; i < count; i++) {
        if (end - at < SHUNTER_STRING_LENGTH) {
            return false;
        }
        const uint64_t length = u32_at(content + at);
        at += SHUNTER_STRING_LENGTH;
        if (length > end - at) {
            return false;
        }
        if (places) {
            places[2 * i] = at;
            places[2 * i + 1] = at + length;
        }
        at += length;
    }
    return at == end;
}

void shunter_run_head(const struct shunter_packed *packed, const uint64_t *row, uint8_t *to) {
    const uint32_t rows[2] = {(uint32_t)row[0], 0};
    const uint64_t *places = row + 1, *dims = places + 2 * packed->count;
    uint8_t *sizes = to + sizeof rows, *end = sizes + 8 * (size_t)packed->count;
    memcpy(to, rows, sizeof rows);
    for (uint32_t t = 0; t < packed->count; t++) {
        memcpy(sizes + 8 * (size_t)t, &places[2 * t + 1], 8);
    }
    for (uint32_t i = 0; i < packed->dims; i++, end += 4) {
        const uint32_t size = (uint32_t)dims[i];
        memcpy(end, &size, sizeof size);
    }
    memset(end, 0, (size_t)(to + packed->header - end));
}

uint64_t shunter_run_places(const struct shunter_packed *packed, uint64_t *row) {
    uint64_t at = packed->header, end = at;
    for (uint32_t t = 0; t < packed->count; t++) {
        row[1 + 2 * t] = at;
        end = at + row[2 + 2 * t];
        at = shunter_packed_up(end);
    }
    return end;
}
