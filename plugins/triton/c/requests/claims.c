/* Whether a request may say that it is strict, as the operator has set it: StrictClaims.java. What a model
 * is by default is not judged. */
#include <string.h>

#include "backend.h"
#include "sha256.h"

/* Without the space around it: a file's, and a header's. */
static bool opens(struct shunter_function *function, const char *secret) {
    uint8_t wanted[SHUNTER_SHA256_BYTES], brought[SHUNTER_SHA256_BYTES], differ = 0;
    struct shunter_sha256 hash;
    secret += strspn(secret, " \t");
    size_t length = strlen(secret);
    while (length && strchr(" \t", secret[length - 1])) {
        length--;
    }
    shunter_sha256_begin(&hash);
    shunter_sha256_add(&hash, secret, length);
    shunter_sha256_end(&hash, brought);
    pthread_mutex_lock(&function->lock);
    memcpy(wanted, function->strict_key, sizeof wanted);
    pthread_mutex_unlock(&function->lock);
    for (size_t i = 0; i < sizeof wanted; i++) {
        differ |= (uint8_t)(wanted[i] ^ brought[i]); // in constant time
    }
    return !differ;
}

bool shunter_may_claim(
    struct shunter_function *function, struct shunter_call *call, const char *key,
    const char *secret) {
    switch (function->claims) {
    case SHUNTER_CLAIMS_WITH_KEY:
        return (secret && opens(function, secret)) ||
               shunter_wrong(
                   call, SHUNTER_END_WRONG,
                   "%s: requests for model \"%.60s\" may say strict only with the secret in "
                   "x-shunter-strict-key", key, function->model);
    case SHUNTER_CLAIMS_NONE:
        return shunter_wrong(
            call, SHUNTER_END_WRONG,
            "%s: requests for model \"%.60s\" may not say strict; [classes] allow_strict does not "
            "name it", key, function->model);
    case SHUNTER_CLAIMS_UNREAD:
        return shunter_wrong(
            call, SHUNTER_END_UNREAD,
            "%s: requests for model \"%.60s\" may not say strict before the server has read its "
            "settings", key, function->model);
    default:
        return true;
    }
}
