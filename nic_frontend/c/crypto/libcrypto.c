#define _GNU_SOURCE
#include "libcrypto.h"

#include <dlfcn.h>
#include <string.h>

bool shunter_libcrypto_find(const struct shunter_symbol *symbols, size_t count) {
    static const char *const NAMES[] = {"libcrypto.so.3", "libcrypto.so.1.1", "libcrypto.so"};
    void *library = NULL;
    for (size_t i = 0; !library && i < sizeof NAMES / sizeof *NAMES; i++) {
        library = dlopen(NAMES[i], RTLD_NOW | RTLD_LOCAL);
    }
    for (size_t i = 0; library && i < count; i++) {
        void *found = dlsym(library, symbols[i].name);
        if (!found) {
            return false;
        }
        memcpy(symbols[i].into, &found, sizeof found);
    }
    return library;
}
