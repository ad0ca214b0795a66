/* Memory for inputs that a session shares with its model's workers. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "hello.h"
#include "segments.h"

ssize_t shunter_receive_memory(int socket, uint8_t *into, size_t room, int *memory) {
    _Alignas(struct cmsghdr) uint8_t control[CMSG_SPACE(sizeof(int))];
    struct iovec piece = {into, room};
    struct msghdr message = {
        .msg_iov = &piece,
        .msg_iovlen = 1,
        .msg_control = control,
        .msg_controllen = CMSG_LEN(sizeof(int))}; // no room for two
    const ssize_t got = recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    const struct cmsghdr *about = got > 0 ? CMSG_FIRSTHDR(&message) : NULL;
    if (about && about->cmsg_level == SOL_SOCKET && about->cmsg_type == SCM_RIGHTS &&
        about->cmsg_len == CMSG_LEN(sizeof(int))) {
        if (*memory >= 0) {
            close(*memory);
        }
        memcpy(memory, CMSG_DATA(about), sizeof *memory);
    }
    return got;
}

static size_t bytes_of(
    const struct shunter_tensors *tensors, const struct shunter_client_settings *settings) {
    uint32_t sizes[SHUNTER_MAX_TENSORS] = {tensors->packing.request_bytes};
    const unsigned count = tensors->packed ? 1 : tensors->input_count;
    for (unsigned i = 0; !tensors->packed && i < count; i++) {
        sizes[i] = (uint32_t)tensors->inputs[i].bytes;
    }
    return (size_t)settings->shared_requests *
           shunter_shared_bytes(sizes, count);
}

int shunter_share(
    int memory, const struct shunter_tensors *tensors, struct shunter_client_settings *settings) {
    const size_t size = bytes_of(tensors, settings);
    struct stat about;
    const int seals = memory < 0 ? -1 : fcntl(memory, F_GET_SEALS);
    if (!size || seals < 0 || !(seals & F_SEAL_SHRINK) || fstat(memory, &about) ||
        about.st_size < 0 || (size_t)about.st_size < size) {
        return -EPROTO;
    }
    void *found = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
    if (found == MAP_FAILED) {
        return -errno;
    }
    settings->shared = found;
    return 0;
}

void shunter_unshare(
    const struct shunter_tensors *tensors, const struct shunter_client_settings *settings) {
    if (settings->shared) {
        munmap(settings->shared, bytes_of(tensors, settings));
    }
}

int shunter_next_inputs(const shunter_session *session, void **inputs) {
    return shunter_session_is_ours(session) ? shunter_client_places(session->client, inputs)
                                            : -ECHILD;
}
