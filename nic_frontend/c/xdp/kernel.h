/* Whether the kernel's headers know all that is needed; without, there is no such backend. */
#ifndef SHUNTER_XDP_KERNEL_H
#define SHUNTER_XDP_KERNEL_H

#ifdef __has_include
#if __has_include(<linux/if_xdp.h>)
#include <linux/bpf.h>
#ifdef BPF_FETCH /* since 5.12 */
#define SHUNTER_HAS_XDP 1
#endif
#endif
#endif

#endif
