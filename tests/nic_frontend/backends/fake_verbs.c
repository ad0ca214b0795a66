/*
 * A libibverbs with one device, whose datagrams go from queue pair to queue pair of the process.
 *
 * What is posted is looked at as hardware would: each piece in a region with its key, addresses that
 * are there. It is carried when somebody polls, so that what changes too early is seen. fake_verbs()
 * makes what comes next go wrong, and tells.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define QUEUE 1024
#define ENDS 8
#define GRH 40

struct piece_list {
    struct ibv_sge pieces[2];
    int count;
    uint64_t id;
    uint8_t *bytes; /* of an inline request */
    struct ibv_ah *to;
    uint32_t queue_pair, key;
    bool signaled;
};

struct queue {
    struct piece_list items[QUEUE];
    uint32_t from, to;
};

struct pair {
    struct ibv_qp qp;
    struct queue receives, sends;
    uint32_t key, inline_bytes;
};

struct completions {
    struct ibv_cq cq;
    struct ibv_wc items[2 * QUEUE];
    uint32_t from, to;
    bool armed;
    int tell;
};

struct address {
    struct ibv_ah ah;
    uint8_t gid[16];
};

static struct {
    int lose, receive_error, send_error, post_receive, post_send, address, stall, cut, ipv4, register_;
    int wrong, alive, most_registered;
    uint32_t keys;
} state;
static struct ibv_mr *regions[64];
static struct pair *pairs[ENDS];
static struct ibv_device device;
static struct ibv_context context;

/* Make the next ``count`` of something go wrong; what it was. */
int fake_verbs(const char *what, int count) {
    static const char *names[] = {"lose", "receive_error", "send_error", "post_receive",
                                  "post_send", "address", "stall", "cut", "ipv4", "register"};
    int *all[] = {&state.lose, &state.receive_error, &state.send_error, &state.post_receive,
                  &state.post_send, &state.address, &state.stall, &state.cut, &state.ipv4,
                  &state.register_};
    if (strcmp(what, "wrong") == 0) {
        return state.wrong;
    }
    if (strcmp(what, "alive") == 0) {
        return state.alive;
    }
    for (unsigned i = 0; i < sizeof all / sizeof *all; i++) {
        if (strcmp(what, names[i]) == 0) {
            *all[i] = count;
            return 0;
        }
    }
    abort();
}

/* Every function of the library holds it: ends may live in several threads. */
static pthread_mutex_t mutex = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;

static pthread_mutex_t *held(void) {
    pthread_mutex_lock(&mutex);
    return &mutex;
}

static void let_go(pthread_mutex_t **lock) { pthread_mutex_unlock(*lock); }

#define ALONE __attribute__((cleanup(let_go), unused)) pthread_mutex_t *lock = held()

static bool happens(int *count) { return *count > 0 && (*count)--; }

static void *made(size_t size) {
    state.alive++;
    return calloc(1, size);
}

static int gone(void *what) {
    state.alive--;
    free(what);
    return 0;
}

/* ---- what is posted */

static bool is_registered(const struct ibv_sge *piece) {
    for (unsigned i = 0; i < 64; i++) {
        const struct ibv_mr *region = regions[i];
        const uint64_t base = region ? (uint64_t)(uintptr_t)region->addr : 0;
        if (region && region->lkey == piece->lkey && piece->addr >= base &&
            piece->addr + piece->length <= base + region->length) {
            return true;
        }
    }
    return false;
}

static void add(struct completions *to, struct ibv_wc completion) {
    to->items[to->to++ % (2 * QUEUE)] = completion;
    if (to->armed && to->tell >= 0) {
        struct completions *self = to;
        to->armed = write(to->tell, &self, sizeof self) < 0;
    }
}

static void complete(struct ibv_cq *cq, uint64_t id, enum ibv_wc_status status, uint32_t number) {
    add((struct completions *)cq,
        (struct ibv_wc){.wr_id = id, .status = status, .qp_num = number});
}

/* All that is posted ends, as in a queue pair with an error. */
static void flush_all(struct pair *pair) {
    pair->qp.state = IBV_QPS_ERR;
    for (; pair->receives.from != pair->receives.to; pair->receives.from++) {
        complete(
            pair->qp.recv_cq, pair->receives.items[pair->receives.from % QUEUE].id,
            IBV_WC_WR_FLUSH_ERR, pair->qp.qp_num);
    }
    for (; pair->sends.from != pair->sends.to; pair->sends.from++) {
        struct piece_list *item = &pair->sends.items[pair->sends.from % QUEUE];
        free(item->bytes);
        complete(pair->qp.send_cq, item->id, IBV_WC_WR_FLUSH_ERR, pair->qp.qp_num);
    }
}

static uint32_t gather(const struct piece_list *item, uint8_t *into) {
    uint32_t length = 0;
    for (int i = 0; i < item->count; i++) {
        const struct ibv_sge *piece = &item->pieces[i];
        if (item->bytes) {
            memcpy(into + length, item->bytes + length, piece->length);
        } else {
            state.wrong += !is_registered(piece);
            memcpy(into + length, (void *)(uintptr_t)piece->addr, piece->length);
        }
        length += piece->length;
    }
    return length;
}

static void scatter(const struct piece_list *item, const uint8_t *from, uint32_t length) {
    for (int i = 0; i < item->count && length; i++) {
        const uint32_t here = item->pieces[i].length < length ? item->pieces[i].length : length;
        state.wrong += !is_registered(&item->pieces[i]);
        memcpy((void *)(uintptr_t)item->pieces[i].addr, from, here);
        from += here;
        length -= here;
    }
    state.wrong += length != 0;
}

static struct pair *pair_of(uint32_t number) {
    for (int i = 0; i < ENDS; i++) {
        if (pairs[i] && pairs[i]->qp.qp_num == number) {
            return pairs[i];
        }
    }
    return NULL;
}

/* In front of the datagram: who sent it, as GRH or as a packet of RoCE over IPv4 has it. */
static void write_front(uint8_t *into) {
    memset(into, 0xee, GRH);
    if (state.ipv4) {
        static const uint8_t header[20] = {0x45, 0, 0, 100, 0, 0, 0x40, 0, 64, 17,
                                           0x22, 0x2d, 10, 9, 8, 7, 10, 9, 8, 6};
        memcpy(into + 20, header, sizeof header);
        uint32_t sum = 0;
        for (int i = 0; i < 20; i += 2) {
            sum += i == 10 ? 0 : (uint32_t)header[i] << 8 | header[i + 1];
        }
        sum = (sum & 0xffff) + (sum >> 16);
        into[30] = (uint8_t)(~sum >> 8);
        into[31] = (uint8_t)~sum;
        return;
    }
    into[0] = 0x60;
    memset(into + 8, 0x11, 16);
    into[23] = 1;
}

static void carry_one(struct pair *from, struct piece_list *item) {
    static uint8_t bytes[GRH + 65536];
    const uint32_t sent = gather(item, bytes + GRH);
    const uint32_t length = state.cut < 0 ? 0 : state.cut ? (uint32_t)state.cut : sent;
    struct pair *to = pair_of(item->queue_pair);
    const struct address *address = (struct address *)item->to;
    state.wrong += address->gid[15] != 1 && address->gid[15] != 7; // its handle is gone
    if (item->signaled) {
        complete(from->qp.send_cq, item->id, IBV_WC_SUCCESS, from->qp.qp_num);
    }
    if (!to || to->qp.state < IBV_QPS_RTR || to->qp.state == IBV_QPS_ERR || item->key != to->key ||
        to->receives.from == to->receives.to || happens(&state.lose)) {
        return;
    }
    struct piece_list *place = &to->receives.items[to->receives.from++ % QUEUE];
    if (happens(&state.receive_error)) {
        complete(to->qp.recv_cq, place->id, IBV_WC_LOC_LEN_ERR, to->qp.qp_num);
        flush_all(to);
        return;
    }
    write_front(bytes);
    scatter(place, bytes, GRH + length);
    add((struct completions *)to->qp.recv_cq,
        (struct ibv_wc){
            .wr_id = place->id,
            .status = IBV_WC_SUCCESS,
            .byte_len = GRH + length,
            .qp_num = to->qp.qp_num,
            .src_qp = from->qp.qp_num,
            .wc_flags = IBV_WC_GRH});
}

static void carry(void) {
    for (int i = 0; i < ENDS && !state.stall; i++) {
        struct pair *from = pairs[i];
        while (from && from->sends.from != from->sends.to) {
            struct piece_list *item = &from->sends.items[from->sends.from++ % QUEUE];
            if (happens(&state.send_error)) {
                complete(from->qp.send_cq, item->id, IBV_WC_LOC_QP_OP_ERR, from->qp.qp_num);
                free(item->bytes);
                flush_all(from);
                break;
            }
            carry_one(from, item);
            free(item->bytes);
        }
    }
}

static int post_recv(struct ibv_qp *qp, struct ibv_recv_wr *request, struct ibv_recv_wr **bad) {
    ALONE;
    struct pair *pair = (struct pair *)qp;
    for (; request; request = request->next) {
        if (happens(&state.post_receive)) {
            *bad = request;
            return ENOMEM;
        }
        struct piece_list *item = &pair->receives.items[pair->receives.to++ % QUEUE];
        *item = (struct piece_list){.count = request->num_sge, .id = request->wr_id};
        memcpy(item->pieces, request->sg_list, (size_t)request->num_sge * sizeof *item->pieces);
    }
    if (pair->qp.state == IBV_QPS_ERR) {
        flush_all(pair);
    }
    return 0;
}

static int post_send(struct ibv_qp *qp, struct ibv_send_wr *request, struct ibv_send_wr **bad) {
    ALONE;
    struct pair *pair = (struct pair *)qp;
    for (; request; request = request->next) {
        if (happens(&state.post_send)) {
            *bad = request;
            return ENOMEM;
        }
        struct piece_list *item = &pair->sends.items[pair->sends.to++ % QUEUE];
        *item = (struct piece_list){
            .count = request->num_sge,
            .id = request->wr_id,
            .to = request->wr.ud.ah,
            .queue_pair = request->wr.ud.remote_qpn,
            .key = request->wr.ud.remote_qkey,
            .signaled = request->send_flags & IBV_SEND_SIGNALED};
        memcpy(item->pieces, request->sg_list, (size_t)request->num_sge * sizeof *item->pieces);
        if (request->send_flags & IBV_SEND_INLINE) {
            uint32_t length = 0;
            uint8_t *bytes = malloc(pair->inline_bytes);
            for (int i = 0; i < request->num_sge; i++) {
                const struct ibv_sge *piece = &request->sg_list[i];
                if (length + piece->length > pair->inline_bytes) {
                    abort();
                }
                memcpy(bytes + length, (void *)(uintptr_t)piece->addr, piece->length);
                length += piece->length;
            }
            item->bytes = bytes;
        }
    }
    if (pair->qp.state == IBV_QPS_ERR) {
        flush_all(pair);
    }
    return 0;
}

static int poll_cq(struct ibv_cq *cq, int most, struct ibv_wc *into) {
    ALONE;
    struct completions *completions = (struct completions *)cq;
    int count = 0;
    carry();
    while (count < most && completions->from != completions->to) {
        into[count++] = completions->items[completions->from++ % (2 * QUEUE)];
    }
    return count;
}

static int req_notify_cq(struct ibv_cq *cq, int solicited) {
    ALONE;
    (void)solicited;
    ((struct completions *)cq)->armed = true;
    return 0;
}

/* ---- the library */

struct ibv_device **ibv_get_device_list(int *count) {
    struct ibv_device **list = made(2 * sizeof *list);
    list[0] = &device;
    *count = 1;
    return list;
}

void ibv_free_device_list(struct ibv_device **list) { gone(list); }

const char *ibv_get_device_name(struct ibv_device *of) {
    (void)of;
    return "fake0";
}

struct ibv_context *ibv_open_device(struct ibv_device *of) {
    context.device = of;
    context.ops.poll_cq = poll_cq;
    context.ops.req_notify_cq = req_notify_cq;
    context.ops.post_send = post_send;
    context.ops.post_recv = post_recv;
    state.alive++;
    return &context;
}

int ibv_close_device(struct ibv_context *of) {
    (void)of;
    state.alive--;
    return 0;
}

#undef ibv_query_port
int ibv_query_port(struct ibv_context *of, uint8_t port, struct _compat_ibv_port_attr *into) {
    (void)of;
    struct ibv_port_attr *found = (void *)into;
    found->state = port == 2 ? IBV_PORT_DOWN : IBV_PORT_ACTIVE;
    found->active_mtu = IBV_MTU_2048;
    found->lid = 5;
    return port > 2 ? EINVAL : 0;
}

int ibv_query_gid(struct ibv_context *of, uint8_t port, int index, union ibv_gid *gid) {
    (void)of, (void)port, (void)index;
    memset(gid->raw, 0x11, sizeof gid->raw);
    gid->raw[15] = 1;
    return 0;
}

struct ibv_pd *ibv_alloc_pd(struct ibv_context *of) {
    struct ibv_pd *found = made(sizeof *found);
    found->context = of;
    return found;
}

int ibv_dealloc_pd(struct ibv_pd *pd) { return gone(pd); }

static struct ibv_mr *registered(struct ibv_pd *pd, void *base, size_t bytes) {
    ALONE;
    if (happens(&state.register_)) {
        errno = EOPNOTSUPP;
        return NULL;
    }
    struct ibv_mr *found = made(sizeof *found);
    *found = (struct ibv_mr){.pd = pd, .addr = base, .length = bytes, .lkey = ++state.keys};
    for (unsigned i = 0; i < 64; i++) {
        if (!regions[i]) {
            regions[i] = found;
            return found;
        }
    }
    abort();
}

#undef ibv_reg_mr
struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *base, size_t bytes, int access) {
    (void)access;
    return registered(pd, base, bytes);
}

struct ibv_mr *ibv_reg_dmabuf_mr(
    struct ibv_pd *pd, uint64_t offset, size_t bytes, uint64_t address, int descriptor, int access) {
    (void)access;
    state.wrong += descriptor != 77 || offset != 4096;
    return registered(pd, (void *)(uintptr_t)address, bytes);
}

int ibv_dereg_mr(struct ibv_mr *region) {
    ALONE;
    for (unsigned i = 0; i < 64; i++) {
        regions[i] = regions[i] == region ? NULL : regions[i];
    }
    return gone(region);
}

struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *of) {
    struct ibv_comp_channel *found = made(sizeof *found);
    int ends[2];
    if (pipe(ends)) {
        abort();
    }
    found->context = of;
    found->fd = ends[0];
    found->refcnt = ends[1];
    return found;
}

int ibv_destroy_comp_channel(struct ibv_comp_channel *channel) {
    close(channel->fd);
    close(channel->refcnt);
    return gone(channel);
}

struct ibv_cq *ibv_create_cq(
    struct ibv_context *of, int entries, void *own, struct ibv_comp_channel *channel, int vector) {
    (void)vector;
    struct completions *found = made(sizeof *found);
    found->cq.context = of;
    found->cq.cqe = entries;
    found->cq.cq_context = own;
    found->tell = channel ? channel->refcnt : -1;
    return &found->cq;
}

int ibv_destroy_cq(struct ibv_cq *cq) {
    ALONE;
    state.wrong += cq->comp_events_completed != 0; // an event that nobody acknowledged
    return gone(cq);
}

int ibv_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **own) {
    ALONE;
    struct completions *found;
    if (read(channel->fd, &found, sizeof found) != sizeof found) {
        return -1;
    }
    *cq = &found->cq;
    *own = found->cq.cq_context;
    found->cq.comp_events_completed++;
    return 0;
}

void ibv_ack_cq_events(struct ibv_cq *cq, unsigned int count) {
    ALONE;
    cq->comp_events_completed -= count;
}

struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attributes) {
    ALONE;
    struct pair *found = made(sizeof *found);
    found->qp = (struct ibv_qp){
        .context = pd->context,
        .pd = pd,
        .send_cq = attributes->send_cq,
        .recv_cq = attributes->recv_cq,
        .qp_type = attributes->qp_type,
        .state = IBV_QPS_RESET};
    found->inline_bytes = attributes->cap.max_inline_data;
    for (unsigned i = 0; i < ENDS; i++) {
        if (!pairs[i]) {
            pairs[i] = found;
            found->qp.qp_num = 100 + i;
            return &found->qp;
        }
    }
    abort();
}

/* As hardware: from reset to init to receive to send, and all that was posted is gone at reset. */
int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attributes, int mask) {
    ALONE;
    struct pair *pair = (struct pair *)qp;
    const enum ibv_qp_state to = attributes->qp_state;
    const int named = IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY;
    if (to != IBV_QPS_RESET && (unsigned)to != (unsigned)qp->state + 1) {
        return EINVAL;
    }
    if ((to == IBV_QPS_INIT && (mask & named) != named) ||
        (to == IBV_QPS_RTS && !(mask & IBV_QP_SQ_PSN))) {
        return EINVAL;
    }
    if (to == IBV_QPS_RESET) {
        for (; pair->sends.from != pair->sends.to; pair->sends.from++) {
            free(pair->sends.items[pair->sends.from % QUEUE].bytes);
        }
        pair->receives.from = pair->receives.to;
    }
    pair->key = to == IBV_QPS_INIT ? attributes->qkey : pair->key;
    qp->state = to;
    return 0;
}

int ibv_destroy_qp(struct ibv_qp *qp) {
    ALONE;
    struct ibv_qp_attr reset = {.qp_state = IBV_QPS_RESET};
    ibv_modify_qp(qp, &reset, IBV_QP_STATE);
    for (unsigned i = 0; i < ENDS; i++) {
        pairs[i] = pairs[i] == (struct pair *)qp ? NULL : pairs[i];
    }
    return gone(qp);
}

struct ibv_ah *ibv_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *attributes) {
    ALONE;
    if (happens(&state.address)) {
        errno = ENOMEM;
        return NULL;
    }
    struct address *found = made(sizeof *found);
    found->ah.context = pd->context;
    memcpy(found->gid, attributes->grh.dgid.raw, sizeof found->gid);
    return &found->ah;
}

int ibv_destroy_ah(struct ibv_ah *ah) {
    ALONE;
    memset(((struct address *)ah)->gid, 0, 16);
    return gone(ah);
}
