/* Errors in words. */
#include <errno.h>
#include <string.h>

#include "shunter_client.h"
#include "wire_layout.h"

const char *shunter_strerror(int error) {
    switch (-error) {
    case 0:
        return "success";
    case SHUNTER_STATUS_BAD_REQUEST:
        return "the server refused the sizes of the tensors";
    case SHUNTER_STATUS_UNAUTHORIZED:
        return "the server does not accept the key, or wants one";
    case SHUNTER_STATUS_FORBIDDEN:
        return "the key is not for this model";
    case SHUNTER_STATUS_UNKNOWN_FUNCTION:
        return "the server has no such model";
    case SHUNTER_STATUS_TOO_SLOW:
        return "the parts were taken too slowly: others of the batch would have waited for them";
    case SHUNTER_STATUS_LOST_ANSWER:
        return "the request ran, but its answer is no longer kept";
    case SHUNTER_STATUS_WOULD_BE_LATE:
        return "the request did not run: its answer was predicted to miss the deadline";
    case SHUNTER_STATUS_UNKNOWN_SESSION:
        return "the server has lost the session; it is not known whether the request ran";
    case SHUNTER_STATUS_TOO_LARGE:
        return "the tensors are too large for datagrams: use tcp:// or shunter://";
    case SHUNTER_STATUS_MUST_ENCRYPT:
        return "the server serves encrypted sessions only";
    case SHUNTER_STATUS_HANDLER_FAILED:
        return "the handler failed";
    case SHUNTER_STATUS_CANNOT_ENCRYPT:
        return "the server cannot encrypt";
    case SHUNTER_STATUS_WORKER_DIED:
        return "the worker died; it is not known whether the request ran";
    case SHUNTER_STATUS_RETRY_LATER:
        return "the server has no room";
    case SHUNTER_STATUS_TOO_LATE:
        return "the deadline had passed before the request could run";
    case SHUNTER_STATUS_NO_WORKER:
        return "the request did not run: the model has no worker";
    case ENOTSUP:
        return "encryption needs OpenSSL's libcrypto";
    default:
        return strerror(-error); // of an errno; for others it says the number
    }
}
