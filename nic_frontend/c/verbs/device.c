/* Device, memory and queue pair. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include "verbs_parts.h"

#ifdef SHUNTER_HAS_VERBS

#define INLINE_BYTES 128u
#define NO_PORT 255

static int failed(void) { return errno ? -errno : -EIO; }

/* "name:port" or "name". */
static int open_device(struct shunter_verbs *verbs, const char *wanted) {
    const char *colon = strchr(wanted, ':');
    const size_t length = colon ? (size_t)(colon - wanted) : strlen(wanted);
    const int port = colon ? atoi(colon + 1) : 1;
    int count = 0;
    struct ibv_device **devices = verbs->library->get_device_list(&count);
    errno = ENODEV;
    for (int i = 0; devices && i < count && !verbs->context; i++) {
        const char *name = verbs->library->get_device_name(devices[i]);
        if (strlen(name) == length && memcmp(name, wanted, length) == 0) {
            verbs->context = verbs->library->open_device(devices[i]);
        }
    }
    const int error = verbs->context ? 0 : failed();
    if (devices) {
        verbs->library->free_device_list(devices);
    }
    verbs->port = port > 0 && port < NO_PORT ? (uint8_t)port : NO_PORT;
    return error;
}

static int look_at_port(struct shunter_verbs *verbs) {
    struct ibv_port_attr found;
    memset(&found, 0, sizeof found); // libibverbs fills its beginning
    errno = 0;
    if (verbs->library->query_port(verbs->context, verbs->port, (void *)&found) ||
        verbs->library->query_gid(verbs->context, verbs->port, verbs->gid_index, &verbs->gid)) {
        return failed();
    }
    if (found.state != IBV_PORT_ACTIVE) {
        return -ENETDOWN;
    }
    verbs->lid = found.lid;
    verbs->mtu = 128u << (unsigned)found.active_mtu;
    return 0;
}

/* The memory of the landing pool, whoever's it is. */
static struct ibv_mr *register_landing(
    struct shunter_verbs *verbs, const struct shunter_verbs_settings *settings) {
    uint8_t *base = shunter_chunks_base(&verbs->chunks);
    const size_t bytes = (size_t)verbs->chunks.blocks * SHUNTER_BLOCK;
    const size_t before = (size_t)(base - settings->landing->base);
    if (settings->memory == SHUNTER_VERBS_DMABUF) {
        return verbs->library->reg_dmabuf_mr(
            verbs->domain, settings->dmabuf_offset + before, bytes, (uint64_t)(uintptr_t)base,
            settings->dmabuf, IBV_ACCESS_LOCAL_WRITE);
    }
    return verbs->library->reg_mr(verbs->domain, base, bytes, IBV_ACCESS_LOCAL_WRITE);
}

static struct ibv_mr *register_bytes(struct shunter_verbs *verbs, uint8_t **bytes, size_t size) {
    *bytes = aligned_alloc(4096, size);
    if (!*bytes) {
        errno = ENOMEM;
        return NULL;
    }
    memset(*bytes, 0, size);
    return verbs->library->reg_mr(verbs->domain, *bytes, size, IBV_ACCESS_LOCAL_WRITE);
}

static int register_all(
    struct shunter_verbs *verbs, const struct shunter_verbs_settings *settings,
    const char **step) {
    *step = "protection domain";
    verbs->domain = verbs->library->alloc_pd(verbs->context);
    if (!verbs->domain) {
        return failed();
    }
    *step = "registering the landing pool";
    verbs->landing = register_landing(verbs, settings);
    if (!verbs->landing) {
        return failed();
    }
    *step = "registering headers";
    verbs->headers =
        register_bytes(verbs, &verbs->header_bytes, (size_t)SHUNTER_VERBS_RECEIVES * SHUNTER_VERBS_HEADER_STEP);
    verbs->copies = register_bytes(
        verbs, &verbs->copy_bytes, (size_t)SHUNTER_VERBS_SENDS * SHUNTER_VERBS_CHUNK);
    return verbs->headers && verbs->copies ? 0 : failed();
}

/* What can be read when something has come: the channel, or what says that there is more. */
static int watch(struct shunter_verbs *verbs) {
    struct epoll_event event = {.events = EPOLLIN};
    verbs->more = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    verbs->backend.ready = epoll_create1(EPOLL_CLOEXEC);
    return verbs->more < 0 || verbs->backend.ready < 0 ||
           epoll_ctl(verbs->backend.ready, EPOLL_CTL_ADD, verbs->channel->fd, &event) ||
           epoll_ctl(verbs->backend.ready, EPOLL_CTL_ADD, verbs->more, &event);
}

static int make_queues(struct shunter_verbs *verbs) {
    const struct shunter_verbs_library *library = verbs->library;
    verbs->channel = library->create_comp_channel(verbs->context);
    if (!verbs->channel || fcntl(verbs->channel->fd, F_SETFL, O_NONBLOCK) || watch(verbs)) {
        return failed();
    }
    verbs->received = library->create_cq(
        verbs->context, (int)SHUNTER_VERBS_RECEIVES, verbs, verbs->channel, 0);
    verbs->sent = library->create_cq(verbs->context, (int)SHUNTER_VERBS_SENDS, verbs, NULL, 0);
    if (!verbs->received || !verbs->sent) {
        return failed();
    }
    struct ibv_qp_init_attr attributes = {
        .send_cq = verbs->sent,
        .recv_cq = verbs->received,
        .qp_type = IBV_QPT_UD,
        .cap = {SHUNTER_VERBS_SENDS, SHUNTER_VERBS_RECEIVES, 2, 2, INLINE_BYTES}};
    verbs->queue_pair = library->create_qp(verbs->domain, &attributes);
    if (!verbs->queue_pair) { // a device without inline data
        attributes.cap.max_inline_data = 0;
        verbs->queue_pair = library->create_qp(verbs->domain, &attributes);
    }
    verbs->inline_bytes = attributes.cap.max_inline_data;
    return verbs->queue_pair ? 0 : failed();
}

int shunter_verbs_start_queue_pair(struct shunter_verbs *verbs) {
    struct ibv_qp_attr reset = {.qp_state = IBV_QPS_RESET};
    struct ibv_qp_attr init = {
        .qp_state = IBV_QPS_INIT, .port_num = verbs->port, .qkey = SHUNTER_VERBS_Q_KEY};
    struct ibv_qp_attr receive = {.qp_state = IBV_QPS_RTR};
    struct ibv_qp_attr send = {.qp_state = IBV_QPS_RTS};
    const int named = IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY;
    const __typeof__(&ibv_modify_qp) modify = verbs->library->modify_qp;
    int error = modify(verbs->queue_pair, &reset, IBV_QP_STATE);
    error = error ? error : modify(verbs->queue_pair, &init, IBV_QP_STATE | named);
    error = error ? error : modify(verbs->queue_pair, &receive, IBV_QP_STATE);
    error = error ? error : modify(verbs->queue_pair, &send, IBV_QP_STATE | IBV_QP_SQ_PSN);
    return -error;
}

int shunter_verbs_set_up(
    struct shunter_verbs *verbs, const struct shunter_verbs_settings *settings, const char **step) {
    *step = "opening it";
    int error = open_device(verbs, settings->device);
    if (error) {
        return error;
    }
    verbs->gid_index = settings->gid_index;
    *step = "its port";
    error = look_at_port(verbs);
    error = error ? error : register_all(verbs, settings, step);
    if (error) {
        return error;
    }
    *step = "its queues";
    error = make_queues(verbs);
    return error ? error : shunter_verbs_start_queue_pair(verbs);
}

/* ---- and back */

static void deregister(struct shunter_verbs *verbs, struct ibv_mr *region) {
    if (region) {
        verbs->library->dereg_mr(region);
    }
}

void shunter_verbs_take_down(struct shunter_verbs *verbs) {
    const struct shunter_verbs_library *library = verbs->library;
    if (verbs->queue_pair) {
        library->destroy_qp(verbs->queue_pair);
    }
    shunter_verbs_forget_all(verbs);
    if (verbs->received) {
        library->destroy_cq(verbs->received);
    }
    if (verbs->sent) {
        library->destroy_cq(verbs->sent);
    }
    if (verbs->channel) {
        library->destroy_comp_channel(verbs->channel);
    }
    for (uint32_t i = 0; i < verbs->region_count; i++) {
        deregister(verbs, verbs->regions[i]);
    }
    deregister(verbs, verbs->copies);
    deregister(verbs, verbs->headers);
    deregister(verbs, verbs->landing);
    if (verbs->domain) {
        library->dealloc_pd(verbs->domain);
    }
    if (verbs->context) {
        library->close_device(verbs->context);
    }
    free(verbs->header_bytes);
    free(verbs->copy_bytes);
}

#endif
