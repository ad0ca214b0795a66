#include "tensors.h"

#include <stdint.h>
#include <string.h>

#define DEEPEST 16 /* of what is skipped */

struct reader {
    const char *at, *end;
};

static void skip_space(struct reader *in) {
    while (in->at < in->end && strchr(" \t\r\n", *in->at) && *in->at) {
        in->at++;
    }
}

/* Whether this character comes next; it is taken. */
static bool take(struct reader *in, char wanted) {
    skip_space(in);
    if (in->at == in->end || *in->at != wanted) {
        return false;
    }
    in->at++;
    return true;
}

static bool put(char *into, size_t room, size_t *length, unsigned byte) {
    if (into && *length + 1 >= room) {
        return false;
    }
    if (into) {
        into[*length] = (char)byte;
    }
    ++*length;
    return true;
}

static bool put_rune(char *into, size_t room, size_t *length, uint32_t rune) {
    if (rune < 0x80) {
        return rune && put(into, room, length, rune); // no NUL in the midst of a name
    }
    const int more = rune < 0x800 ? 1 : rune < 0x10000 ? 2 : 3;
    const unsigned first[] = {0, 0xc0, 0xe0, 0xf0};
    bool good = put(into, room, length, first[more] | rune >> (6 * more));
    for (int i = more - 1; good && i >= 0; i--) {
        good = put(into, room, length, 0x80 | (rune >> (6 * i) & 0x3f));
    }
    return good;
}

static bool read_hex(struct reader *in, uint32_t *value) {
    *value = 0;
    for (int i = 0; i < 4; i++, in->at++) {
        static const char DIGITS[] = "0123456789abcdefABCDEF";
        const char *found = in->at < in->end && *in->at ? strchr(DIGITS, *in->at) : NULL;
        if (!found) {
            return false;
        }
        const uint32_t digit = (uint32_t)(found - DIGITS);
        *value = *value << 4 | (digit < 16 ? digit : digit - 6);
    }
    return true;
}

static bool read_escape(struct reader *in, char *into, size_t room, size_t *length) {
    static const char NAMES[] = "\"\\/bfnrt", MEANT[] = "\"\\/\b\f\n\r\t";
    const char name = in->at < in->end ? *in->at++ : 0;
    const char *found = name ? strchr(NAMES, name) : NULL;
    if (found) {
        return put(into, room, length, (unsigned char)MEANT[found - NAMES]);
    }
    uint32_t rune, low;
    if (name != 'u' || !read_hex(in, &rune)) {
        return false;
    }
    if (rune >= 0xd800 && rune < 0xdc00) {
        if (in->end - in->at < 6 || *in->at++ != '\\' || *in->at++ != 'u' || !read_hex(in, &low) ||
            low < 0xdc00 || low > 0xdfff) {
            return false;
        }
        rune = 0x10000 + ((rune - 0xd800) << 10 | (low - 0xdc00));
    }
    return (rune < 0xd800 || rune > 0xdfff) && put_rune(into, room, length, rune);
}

/* A string with a NUL behind it; ``into`` may be NULL. */
static bool read_string(struct reader *in, char *into, size_t room) {
    size_t length = 0;
    if (!take(in, '"')) {
        return false;
    }
    while (in->at < in->end && *in->at != '"') {
        const unsigned char byte = (unsigned char)*in->at++;
        if (byte < 0x20 ||
            !(byte == '\\' ? read_escape(in, into, room, &length)
                           : put(into, room, &length, byte))) {
            return false;
        }
    }
    if (into) {
        into[length] = 0;
    }
    return take(in, '"');
}

static bool read_count(struct reader *in, uint64_t *value) {
    skip_space(in);
    const char *begun = in->at;
    for (*value = 0; in->at < in->end && *in->at >= '0' && *in->at <= '9'; in->at++) {
        if (*value > UINT32_MAX) {
            return false;
        }
        *value = *value * 10 + (uint64_t)(*in->at - '0');
    }
    return in->at > begun && *value <= UINT32_MAX;
}

/* What is not known to this client. */
static bool skip_value(struct reader *in, int depth) {
    skip_space(in);
    if (in->at == in->end || depth > DEEPEST) {
        return false;
    }
    const char first = *in->at;
    if (first == '"') {
        return read_string(in, NULL, 0);
    }
    if (first == '{' || first == '[') {
        const char last = first == '{' ? '}' : ']';
        in->at++;
        if (take(in, last)) {
            return true;
        }
        do {
            if (first == '{' && !(read_string(in, NULL, 0) && take(in, ':'))) {
                return false;
            }
            if (!skip_value(in, depth + 1)) {
                return false;
            }
        } while (take(in, ','));
        return take(in, last);
    }
    const char *begun = in->at;
    while (in->at < in->end && *in->at && !strchr(",]} \t\r\n", *in->at)) {
        in->at++;
    }
    return in->at > begun;
}

/* A dimension: a size, or -1 for one that requests choose. */
static bool read_size(struct reader *in, uint64_t *value) {
    if (take(in, '-')) {
        const bool is_any = in->at < in->end && *in->at == '1' && read_count(in, value);
        const bool is_one = is_any && *value == 1;
        *value = SHUNTER_ANY;
        return is_one;
    }
    return read_count(in, value);
}

static bool read_shape(struct reader *in, struct shunter_tensor *tensor) {
    tensor->dimensions = 0;
    if (!take(in, '[') || take(in, ']')) {
        return in->at[-1] == ']';
    }
    do {
        if (tensor->dimensions == SHUNTER_MOST_DIMENSIONS ||
            !read_size(in, &tensor->shape[tensor->dimensions++])) {
            return false;
        }
    } while (take(in, ','));
    return take(in, ']');
}

/* Up to its value; empty: it is longer than any that is known. */
static bool read_key(struct reader *in, char *key, size_t room) {
    const struct reader before = *in;
    if (!read_string(in, key, room)) {
        *in = before;
        key[0] = 0;
        if (!read_string(in, NULL, 0)) {
            return false;
        }
    }
    return take(in, ':');
}

static bool read_tensor(struct reader *in, struct shunter_tensor *tensor) {
    bool has_shape = false;
    memset(tensor, 0, sizeof *tensor);
    if (!take(in, '{')) {
        return false;
    }
    do {
        char key[16];
        if (!read_key(in, key, sizeof key)) {
            return false;
        }
        const bool is_shape = !strcmp(key, "shape");
        has_shape |= is_shape;
        if (!(is_shape ? read_shape(in, tensor)
              : !strcmp(key, "name")
                  ? read_string(in, tensor->name, sizeof tensor->name)
              : !strcmp(key, "dtype")
                  ? read_string(in, tensor->dtype, sizeof tensor->dtype)
                  : skip_value(in, 0))) {
            return false;
        }
    } while (take(in, ','));
    return take(in, '}') && has_shape && shunter_set_bytes(tensor);
}

static bool read_list(struct reader *in, struct shunter_tensor *tensors, unsigned *count) {
    *count = 0;
    if (!take(in, '[')) {
        return false;
    }
    do {
        if (*count == SHUNTER_MOST_TENSORS || !read_tensor(in, &tensors[(*count)++])) {
            return false;
        }
    } while (take(in, ','));
    return take(in, ']');
}

static bool read_bool(struct reader *in, int *value) {
    skip_space(in);
    const char *begun = in->at;
    *value = in->at < in->end && *in->at == 't';
    return skip_value(in, 0) && (size_t)(in->at - begun) == (*value ? 4u : 5u) &&
           !memcmp(begun, *value ? "true" : "false", (size_t)(in->at - begun));
}

static bool read_size_of_run(struct reader *in, uint32_t *value) {
    uint64_t count;
    const bool good = read_count(in, &count) && count;
    *value = good ? (uint32_t)count : 0;
    return good;
}

static bool read_packing(struct reader *in, struct shunter_packing *packing) {
    memset(packing, 0, sizeof *packing);
    if (!take(in, '{')) {
        return false;
    }
    do {
        char key[16];
        if (!read_key(in, key, sizeof key)) {
            return false;
        }
        if (!(!strcmp(key, "batched")         ? read_bool(in, &packing->batched)
              : !strcmp(key, "streamed")      ? read_bool(in, &packing->streamed)
              : !strcmp(key, "rows")          ? read_size_of_run(in, &packing->rows)
              : !strcmp(key, "request_bytes") ? read_size_of_run(in, &packing->request_bytes)
              : !strcmp(key, "answer_bytes")  ? read_size_of_run(in, &packing->answer_bytes)
                                              : skip_value(in, 0))) {
            return false;
        }
    } while (take(in, ','));
    return take(in, '}') && packing->rows && packing->request_bytes && packing->answer_bytes;
}

bool shunter_parse_tensors(const char *text, size_t length, struct shunter_tensors *tensors) {
    struct reader in = {text, text + length};
    tensors->input_count = tensors->output_count = 0;
    tensors->packed = false;
    if (!take(&in, '{')) {
        return false;
    }
    do {
        char key[16];
        if (!read_key(&in, key, sizeof key)) {
            return false;
        }
        if (!(!strcmp(key, "inputs")
                  ? read_list(&in, tensors->inputs, &tensors->input_count)
              : !strcmp(key, "outputs")
                  ? read_list(&in, tensors->outputs, &tensors->output_count)
              : !strcmp(key, "packed") ? read_packing(&in, &tensors->packing)
                                       : skip_value(&in, 0))) {
            return false;
        }
        tensors->packed |= !strcmp(key, "packed");
    } while (take(&in, ','));
    const bool is_closed = take(&in, '}');
    skip_space(&in);
    const bool is_whole = is_closed && in.at == in.end && tensors->input_count &&
                          tensors->output_count;
    return is_whole &&
           (tensors->packed || (!shunter_varies(tensors->inputs, tensors->input_count) &&
                                !shunter_varies(tensors->outputs, tensors->output_count)));
}
