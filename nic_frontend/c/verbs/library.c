/* libibverbs, if it is there. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <string.h>

#include "verbs_parts.h"

#ifdef SHUNTER_HAS_VERBS

static bool find(void *handle, const char *name, void *into) {
    void *found = dlsym(handle, name);
    memcpy(into, &found, sizeof found); // ISO C knows no other way to a function
    return found;
}

const struct shunter_verbs_library *shunter_verbs_library(void) {
    static struct shunter_verbs_library library;
    static bool there;
    void *handle = there ? NULL : dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!there && handle) {
        there = true;
#define SHUNTER_VERBS_FIND(name) there = find(handle, "ibv_" #name, &library.name) && there;
        SHUNTER_VERBS_FUNCTIONS(SHUNTER_VERBS_FIND)
#undef SHUNTER_VERBS_FIND
        if (!there) {
            dlclose(handle);
        }
    }
    return there ? &library : NULL;
}

#endif
