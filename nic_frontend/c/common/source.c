/* What the library was built from, for nic_frontend/build.py, and the bytes that it speaks. */
#include "wire_layout.h"

extern const char shunter_source[];
const char shunter_source[] = SHUNTER_SOURCE;

uint64_t shunter_layout_digest(void);
uint64_t shunter_layout_digest(void) {
    return SHUNTER_LAYOUT_DIGEST;
}

uint64_t shunter_wire_digest(void);
uint64_t shunter_wire_digest(void) {
    return SHUNTER_WIRE_DIGEST;
}
