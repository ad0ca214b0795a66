#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "client_parts.h"
#include "siphash.h"

int shunter_client_guard_new(struct shunter_client *client) {
    if (!shunter_client_encrypts(client)) {
        return 0;
    }
    const struct shunter_plan *plan = &client->inputs;
    client->aead = shunter_aead_new();
    client->sealed = malloc((size_t)plan->count * (plan->segment + SHUNTER_AEAD_TAG));
    if (!client->sealed) {
        return -ENOMEM;
    }
    return client->aead ? 0 : shunter_aead_is_there() ? -ENOMEM : -ENOTSUP;
}

void shunter_client_guard_free(struct shunter_client *client) {
    shunter_aead_free(client->aead);
    free(client->sealed);
}

void shunter_client_sign(struct shunter_client *client, struct shunter_x64 *header) {
    if (client->settings.tagged) {
        header->flags |= SHUNTER_FLAG_HDR_TAG;
        header->tag =
            shunter_siphash24(client->settings.keys.tag_to_server, header, SHUNTER_TAG_OFFSET);
    }
}

static struct shunter_guard guard_of(
    const struct shunter_client *client, uint64_t number, const uint8_t key[16]) {
    struct shunter_guard guard = {.protect = client->settings.protect, .number = number};
    memcpy(guard.key, key, sizeof guard.key);
    return guard;
}

int shunter_client_protect(
    struct shunter_client *client, struct shunter_x64 *header, const uint8_t **payload) {
    header->flags |= client->settings.protect;
    if (header->flags & SHUNTER_FLAG_PAYLOAD_CRC) {
        header->crc = shunter_crc32c(*payload, header->length);
    }
    shunter_client_sign(client, header);
    if (!shunter_client_encrypts(client)) {
        return 0;
    }
    const struct shunter_guard guard =
        guard_of(client, client->pkt_no, client->settings.keys.payload_to_server);
    uint8_t *into =
        client->sealed + (size_t)header->seq * (client->inputs.segment + SHUNTER_AEAD_TAG);
    if (!shunter_aead_seal(client->aead, &guard, header, *payload, header->length, into)) {
        return -EIO;
    }
    *payload = into;
    return 0;
}

bool shunter_client_is_right(
    struct shunter_client *client, const struct shunter_x64 *header, const void *head,
    uint8_t *payload) {
    if (client->settings.protect == SHUNTER_FLAG_PAYLOAD_CRC) {
        return shunter_crc32c(payload, header->length) == header->crc;
    }
    if (!shunter_client_encrypts(client)) {
        return true;
    }
    const uint64_t number = shunter_nearest(header->pkt_no, client->heard_no);
    const struct shunter_guard guard =
        guard_of(client, number, client->settings.keys.payload_to_client);
    if (!shunter_aead_open(
            client->aead, &guard, head, payload, header->length, payload + header->length)) {
        return false;
    }
    client->heard_no = number > client->heard_no ? number : client->heard_no;
    return true;
}
