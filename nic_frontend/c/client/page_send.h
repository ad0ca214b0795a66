/*
 * Large datagrams whose payloads are not copied: the kernel sends the caller's pages themselves.
 *
 * A copy into the kernel's memory is what a large datagram to another core of the same machine
 * costs most: the memory comes back from the receiver's core every time.
 */
#ifndef SHUNTER_PAGE_SEND_H
#define SHUNTER_PAGE_SEND_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

#define SHUNTER_PAGE_SEND_LEAST 32768 /* bytes of a payload for which it is worth it */

/* A pipe, through which the pages go; zeros: none yet. */
struct shunter_page_sender {
    int ends[2];
    unsigned slots; /* pages that it takes; 0: it is not open */
    bool refused;   /* this kernel, or these pages, cannot: never again */
};

/*
 * Send datagrams of two pieces each, header and payload, on a connected UDP socket. Returns how
 * many were sent before one could not be: the caller sends the others itself. The payloads must
 * stay as they are until the other side has them.
 */
uint32_t shunter_page_send(
    struct shunter_page_sender *sender, int socket, const struct iovec *pieces, uint32_t count);
void shunter_page_sender_close(struct shunter_page_sender *sender);

#endif
