/* SipHash-2-4 (Aumasson and Bernstein, 2012). Twin of nic_frontend/wire/siphash.py. */
#ifndef SHUNTER_SIPHASH_H
#define SHUNTER_SIPHASH_H

#include <stddef.h>
#include <stdint.h>

uint64_t shunter_siphash24(const uint8_t key[16], const void *data, size_t length);

#endif
