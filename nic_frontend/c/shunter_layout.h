/* Emitted by python -m shunter.batching.layout. Do not edit. */
#ifndef SHUNTER_LAYOUT_H
#define SHUNTER_LAYOUT_H

/* Offsets of the control page. H_ offsets in the header, K_ in a holder, S_ in a slot; [n] words one after another. */
#define SHUNTER_LAYOUT_VERSION 3 /* raised when a field is added */
#define SHUNTER_MAGIC 0x5245544e554853ULL /* 'SHUNTER' and a zero, little-endian */
#define SHUNTER_PAGE_SIZE 674304 /* bytes of the control page */
#define SHUNTER_HEADER_SIZE 512 /* bytes before holder 0 */
#define SHUNTER_HOLDER_SIZE 128 /* bytes of one holder */
#define SHUNTER_HOLDER_COUNT 16 /* holders */
#define SHUNTER_SLOTS_OFFSET 2560 /* offset of slot 0 */
#define SHUNTER_SLOT_SIZE 5248 /* bytes of one slot */
#define SHUNTER_SLOT_COUNT 128 /* slots */
#define SHUNTER_GROUP_COUNT 8 /* worker groups per slot */
#define SHUNTER_GROUP_STRIDE 128 /* bytes between groups */
#define SHUNTER_SIZE_BUCKETS 16 /* batch size buckets, by power of two */
#define SHUNTER_TIME_BUCKETS 16 /* time buckets, by power of two */
#define SHUNTER_TIME_BUCKET_SHIFT 18 /* the first bucket ends at 2 to this, in ns */
#define SHUNTER_STRICT 0 /* class index */
#define SHUNTER_BEST_EFFORT 1 /* class index */
#define SHUNTER_CHANGE_NONE 0 /* state of a change */
#define SHUNTER_CHANGE_UNDER_WAY 1 /* state of a change */
#define SHUNTER_CHANGE_SERVES 2 /* state of a change */
#define SHUNTER_CHANGE_UNDONE 3 /* state of a change */
#define SHUNTER_H_MAGIC 0 /* MAGIC */
#define SHUNTER_H_LAYOUT_VERSION 8 /* LAYOUT_VERSION */
#define SHUNTER_H_PAGE_SIZE 16 /* bytes of the whole page */
#define SHUNTER_H_HEADER_SIZE 24 /* bytes before holder 0 */
#define SHUNTER_H_SLOT_SIZE 32 /* bytes of one slot */
#define SHUNTER_H_SLOT_COUNT 40 /* number of slots */
#define SHUNTER_H_OWNER_PID 48 /* pid of the JVM that created the page */
#define SHUNTER_H_CREATED_UNIX_NS 56 /* wall clock at creation */
#define SHUNTER_H_JVM_HEARTBEAT_NS 128 /* written by the JVM at least every second */
#define SHUNTER_H_CONTROLLER_PID 256 /* pid of the controller that wrote last, 0 before the first */
#define SHUNTER_H_CONTROLLER_HEARTBEAT_NS 264 /* end of its last duty cycle */
#define SHUNTER_H_CONTROLLER_CYCLES 272 /* duty cycles of this controller */
#define SHUNTER_H_READY 384 /* 1 when the page is complete; written last */
#define SHUNTER_K_HOLDER_PID 0 /* process that owns this word, 0 when free */
#define SHUNTER_K_HOLDER_HEARTBEAT_NS 8 /* a reader ignores a holder whose heartbeat is old */
#define SHUNTER_K_HOLD_MASK 16 /* bit s set: best-effort work on slice s must stand still */
#define SHUNTER_K_HOLD_SINCE_NS 24 /* when the mask last became non-zero */
#define SHUNTER_S_SLOT_SEQUENCE 0 /* seqlock: odd while identity changes */
#define SHUNTER_S_SLOT_STATE 8 /* 0 free, 1 live */
#define SHUNTER_S_GENERATION 16 /* current generation id of the model version */
#define SHUNTER_S_REGISTERED_BATCH_SIZE 24 /* ceiling of every batch */
#define SHUNTER_S_REGISTERED_MAX_WAIT_US 32 /* ceiling of every deliberate wait */
#define SHUNTER_S_QUEUE_CAPACITY 40 /* requests that may wait */
#define SHUNTER_S_GROUP_COUNT 48 /* worker groups in use */
#define SHUNTER_S_SLO_US 56 /* default deadline of strict requests, 0 for none */
#define SHUNTER_S_MODEL_NAME 64 /* UTF-8, zero padded */
#define SHUNTER_S_MODEL_VERSION 320 /* UTF-8, zero padded */
#define SHUNTER_S_AUTO 448 /* 1: the controller may change the configuration */
#define SHUNTER_S_ARCHIVE 456 /* path of the model archive, UTF-8, zero padded */
#define SHUNTER_S_LAST_CHANGE 968 /* what became of the last change, for people */
#define SHUNTER_S_UPDATED_NS 1536 /* time of the last change below */
#define SHUNTER_S_ARRIVALS 1544 /* requests offered, by class [2] */
#define SHUNTER_S_QUEUED 1560 /* requests waiting now, by class [2] */
#define SHUNTER_S_OLDEST_ARRIVAL_NS 1576 /* arrival of the oldest waiting, 0 for none [2] */
#define SHUNTER_S_ANSWERED 1592 /* answered by a worker with the reply's own status [2] */
#define SHUNTER_S_ANSWERED_LATE 1608 /* of these, after their deadline [2] */
#define SHUNTER_S_EXPIRED 1624 /* answered 504 before they ran [2] */
#define SHUNTER_S_REJECTED 1640 /* refused at the door: queue full, draining, bad header [2] */
#define SHUNTER_S_FAILED 1656 /* answered 5xx by us: worker death, drain time-out [2] */
#define SHUNTER_S_ABANDONED 1672 /* client hung up while waiting [2] */
#define SHUNTER_S_RETRIED 1688 /* requests run again after a worker died */
#define SHUNTER_S_POISONED 1696 /* requests that killed two workers */
#define SHUNTER_S_IN_FLIGHT_REQUESTS 1704 /* sent, not answered */
#define SHUNTER_S_IN_FLIGHT_BATCHES 1712 /* sent, not answered */
#define SHUNTER_S_READY_WORKERS 1720 /* loaded workers of the current generation */
#define SHUNTER_S_BUSY_WORKERS 1728 /* of these, with a batch */
#define SHUNTER_S_THRESHOLD_MILLI 1736 /* adaptive threshold now, in 1/1000 requests */
#define SHUNTER_S_BATCHES_BY_SIZE 1744 /* batches answered, by size bucket [16] */
#define SHUNTER_S_SERVICE_NS_BY_SIZE 1872 /* sum of their service times [16] */
#define SHUNTER_S_BATCH_REQUESTS 2000 /* requests in the batches answered */
#define SHUNTER_S_GOOD 2008 /* answered in time or without a deadline, not 5xx, by class [2] */
#define SHUNTER_S_SLO_MET 2024 /* of these, with a deadline [2] */
#define SHUNTER_S_SLO_LATE 2040 /* with a deadline, answered after it, not 5xx [2] */
#define SHUNTER_S_SLO_REJECTED 2056 /* with a deadline, refused at the door [2] */
#define SHUNTER_S_SLO_FAILED 2072 /* with a deadline, answered 5xx by a worker or by us [2] */
#define SHUNTER_S_SLO_ABANDONED 2088 /* with a deadline, client hung up while waiting [2] */
#define SHUNTER_S_QUEUE_NS 2104 /* sum of the waits of what was answered, by class [2] */
#define SHUNTER_S_SERVICE_NS 2120 /* sum of the service times of what was answered [2] */
#define SHUNTER_S_LATENCY_NS 2136 /* sum of the times from arrival to answer [2] */
#define SHUNTER_S_QUEUE_TIMES 2152 /* histogram by class, then bucket [32] */
#define SHUNTER_S_SERVICE_TIMES 2408 /* histogram by class, then bucket [32] */
#define SHUNTER_S_LATENCY_TIMES 2664 /* histogram by class, then bucket [32] */
#define SHUNTER_S_CHANGE_REQUEST 2944 /* the wanted_request taken up last, 0 for none */
#define SHUNTER_S_CHANGE_STATE 2952 /* what became of it, one of CHANGE_... */
#define SHUNTER_S_GROUP_READY 3072 /* loaded workers */
#define SHUNTER_S_GROUP_BUSY 3080 /* of these, with a batch */
#define SHUNTER_S_GROUP_BATCHES 3088 /* batches answered */
#define SHUNTER_S_GROUP_REQUESTS 3096 /* requests answered */
#define SHUNTER_S_GROUP_CAP 3104 /* batch cap of the group's own configuration */
#define SHUNTER_S_GROUP_THREADS 3112 /* threads per worker, 0 when not set */
#define SHUNTER_S_GROUP_FIXED_NS 3120 /* fitted latency of a batch = fixed + n * per_request */
#define SHUNTER_S_GROUP_PER_REQUEST_NS 3128 /* see group_fixed_ns */
#define SHUNTER_S_GROUP_ERROR_NS 3136 /* mean absolute error of the predictions */
#define SHUNTER_S_GROUP_FITTED 3144 /* batches that the fit has seen, 0: nothing is known */
#define SHUNTER_S_GROUP_INSTANCES 3152 /* workers that the configuration asks for */
#define SHUNTER_S_COMMAND_SEQUENCE 4096 /* seqlock: odd while commands change, 0 never written */
#define SHUNTER_S_ALPHA_MILLIONTHS 4104 /* weight of the old threshold when it rises, 0..999999 */
#define SHUNTER_S_THRESHOLD_CAP_MILLI 4112 /* upper bound of the threshold, in 1/1000 requests */
#define SHUNTER_S_THRESHOLD_FIXED_MILLI 4120 /* 0: adapt; else the threshold itself */
#define SHUNTER_S_MAX_WAIT_US 4128 /* deliberate wait, at most registered_max_wait_us */
#define SHUNTER_S_MIX_CLASSES 4136 /* 1: one batch may hold both classes */
#define SHUNTER_S_AGEING_US 4144 /* one best-effort batch goes first in this time if one waits as long, 0 never */
#define SHUNTER_S_AHEAD_BATCHES 4152 /* batches sent to a busy worker, 0 or 1 */
#define SHUNTER_S_LATENCY_FIXED_NS 4160 /* latency of a batch until the fit knows it, 0: unknown */
#define SHUNTER_S_LATENCY_PER_REQUEST_NS 4168 /* see latency_fixed_ns */
#define SHUNTER_S_QUANTUM_US 4176 /* 0: threshold by what follows answers; else Rafiqi's quantum */
#define SHUNTER_S_ADMISSION 4184 /* 1: refuse what would be answered too late */
#define SHUNTER_S_MARGIN_US 4192 /* how long before a deadline an answer shall be ready */
#define SHUNTER_S_WANTED_REQUEST 4200 /* raised when another configuration is wanted, 0 for none */
#define SHUNTER_S_WANTED_GROUPS 4208 /* worker groups of that configuration */
#define SHUNTER_S_WANTED_PIN 4216 /* 1: its workers choose and keep cores of their own */
#define SHUNTER_S_COMMAND_CAP 4224 /* batch cap, 0: the group's own */
#define SHUNTER_S_WEIGHT_MILLI 4232 /* factor of the cap for the class, in 1/1000; 0: never [2] */
#define SHUNTER_S_PREFERENCE 4248 /* groups with a lower number are filled first [2] */
#define SHUNTER_S_WANTED_INSTANCES 4264 /* of the wanted configuration, as the next two */
#define SHUNTER_S_WANTED_THREADS 4272 /* threads of each instance */
#define SHUNTER_S_WANTED_BATCH 4280 /* largest batch of each instance */

_Static_assert(SHUNTER_SLOT_SIZE % 128 == 0, "slots start on a line");
_Static_assert(SHUNTER_SLOTS_OFFSET + SHUNTER_SLOT_COUNT * SHUNTER_SLOT_SIZE ==
               SHUNTER_PAGE_SIZE, "the page holds header, holders and slots");

#endif
