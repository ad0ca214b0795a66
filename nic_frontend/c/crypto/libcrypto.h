/* The system's libcrypto, of OpenSSL 1.1.1 or 3: looked for when it is first needed. */
#ifndef SHUNTER_LIBCRYPTO_H
#define SHUNTER_LIBCRYPTO_H

#include <stdbool.h>
#include <stddef.h>

struct shunter_symbol {
    const char *name;
    void *into; /* a pointer to a function */
};

/* Find all of them; false: it is not there, or lacks one. */
bool shunter_libcrypto_find(const struct shunter_symbol *symbols, size_t count);

#endif
