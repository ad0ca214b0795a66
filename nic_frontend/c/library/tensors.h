/* The description of a model's tensors in a HELLO_ACK, which is JSON. */
#ifndef SHUNTER_TENSORS_H
#define SHUNTER_TENSORS_H

#include <stdbool.h>
#include <stddef.h>

#include "shunter_client.h"

struct shunter_tensors {
    unsigned input_count, output_count;
    struct shunter_tensor inputs[SHUNTER_MOST_TENSORS], outputs[SHUNTER_MOST_TENSORS];
};

/* False: it is not such a description, or one of more than this client takes. */
bool shunter_parse_tensors(const char *text, size_t length, struct shunter_tensors *tensors);

#endif
