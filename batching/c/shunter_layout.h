/* Emitted by python -m shunter.batching.emit. Do not edit. */
#ifndef SHUNTER_LAYOUT_H
#define SHUNTER_LAYOUT_H

#include <stddef.h>
#include <stdint.h>

/* Offsets of the control page. H_ in the header, K_ in a holder, R_ in a runner, S_ in a slot; [n] words in a row. */
#define SHUNTER_LAYOUT_VERSION 11 /* raised when a field is added */
#define SHUNTER_MAGIC 0x5245544e554853ULL /* 'SHUNTER' and a zero, little-endian */
#define SHUNTER_PAGE_SIZE 1119744 /* bytes of the control page */
#define SHUNTER_HEADER_SIZE 3584 /* bytes before holder 0 */
#define SHUNTER_HOLDER_SIZE 128 /* bytes of one holder */
#define SHUNTER_HOLDER_COUNT 16 /* holders */
#define SHUNTER_RUNNERS_OFFSET 5632 /* offset of runner 0 */
#define SHUNTER_RUNNER_SIZE 256 /* bytes of one runner */
#define SHUNTER_RUNNER_COUNT 64 /* runners */
#define SHUNTER_SLOTS_OFFSET 22016 /* offset of slot 0 */
#define SHUNTER_SLOT_SIZE 8576 /* bytes of one slot */
#define SHUNTER_SLOT_COUNT 128 /* slots */
#define SHUNTER_SLOT_WORDS 2 /* words of a mask of slots */
#define SHUNTER_CPU_SLICES 512 /* slices that are CPUs; those of device 0 follow */
#define SHUNTER_DEVICE_COUNT 8 /* devices that have slices of their own */
#define SHUNTER_DEVICE_SLICES 8 /* slices of each device */
#define SHUNTER_DEVICE_BYTES 64 /* bytes of the name of a device, or a part of one */
#define SHUNTER_SLICE_WORDS 9 /* words of a set of slices */
#define SHUNTER_COUNTER_COUNT 64 /* counters of the network front end */
#define SHUNTER_COUNTER_NAME_BYTES 24 /* bytes of the name of each */
#define SHUNTER_GROUP_COUNT 8 /* worker groups per slot */
#define SHUNTER_GROUP_STRIDE 256 /* bytes between groups */
#define SHUNTER_SIZE_BUCKETS 16 /* batch size buckets, by power of two */
#define SHUNTER_TIME_BUCKETS 16 /* time buckets, by power of two */
#define SHUNTER_TIME_BUCKET_SHIFT 18 /* the first bucket ends at 2 to this, in ns */
#define SHUNTER_STRICT 0 /* class index */
#define SHUNTER_BEST_EFFORT 1 /* class index */
#define SHUNTER_CHANGE_NONE 0 /* state of a change */
#define SHUNTER_CHANGE_UNDER_WAY 1 /* state of a change */
#define SHUNTER_CHANGE_SERVES 2 /* state of a change */
#define SHUNTER_CHANGE_UNDONE 3 /* state of a change */
#define SHUNTER_RUNNER_RUNNING 0 /* state of a runner */
#define SHUNTER_RUNNER_YIELDING 1 /* state of a runner */
#define SHUNTER_RUNNER_PARKED 2 /* state of a runner */
#define SHUNTER_RUNNER_RESTORING 3 /* state of a runner */
#define SHUNTER_ORDER_CONCURRENT 0 /* turns of models on a slice */
#define SHUNTER_ORDER_FIFO 1 /* turns of models on a slice */
#define SHUNTER_ORDER_EDF 2 /* turns of models on a slice */
#define SHUNTER_ORDER_ROUND_ROBIN 3 /* turns of models on a slice */
#define SHUNTER_CLAIMS_UNKNOWN 0 /* who may say that he is strict */
#define SHUNTER_CLAIMS_ALL 1 /* who may say that he is strict */
#define SHUNTER_CLAIMS_NONE 2 /* who may say that he is strict */
#define SHUNTER_CLAIMS_WITH_KEY 3 /* who may say that he is strict */
#define SHUNTER_MODEL_NAME_BYTES 256 /* bytes of model_name in a slot */
#define SHUNTER_MODEL_VERSION_BYTES 128 /* bytes of model_version in a slot */
#define SHUNTER_ARCHIVE_BYTES 512 /* bytes of archive in a slot */
#define SHUNTER_LAST_CHANGE_BYTES 256 /* bytes of last_change in a slot */
#define SHUNTER_DEFAULT_VERSION_BYTES 128 /* bytes of default_version in a slot */
#define SHUNTER_PROBLEM_BYTES 256 /* bytes of problem in a slot */
#define SHUNTER_GROUP_DEVICE_BYTES 64 /* bytes of group_device in a slot */
#define SHUNTER_WANTED_DEVICE_BYTES 64 /* bytes of wanted_device in a slot */
#define SHUNTER_MIG_LAYOUTS_BYTES 512 /* bytes of mig_layouts in the header */
#define SHUNTER_MIG_PROBLEM_BYTES 256 /* bytes of mig_problem in the header */
#define SHUNTER_H_MAGIC 0 /* MAGIC */
#define SHUNTER_H_LAYOUT_VERSION 8 /* LAYOUT_VERSION */
#define SHUNTER_H_PAGE_SIZE 16 /* bytes of the whole page */
#define SHUNTER_H_HEADER_SIZE 24 /* bytes before holder 0 */
#define SHUNTER_H_SLOT_SIZE 32 /* bytes of one slot */
#define SHUNTER_H_SLOT_COUNT 40 /* number of slots */
#define SHUNTER_H_OWNER_PID 48 /* pid of the process that created the page */
#define SHUNTER_H_CREATED_UNIX_NS 56 /* wall clock at creation */
#define SHUNTER_H_SERVER 64 /* what the server is called, UTF-8; empty: as usual */
#define SHUNTER_H_SERVER_HEARTBEAT_NS 128 /* written by the server or its host at least every second */
#define SHUNTER_H_CONTROLLER_PID 256 /* pid of the controller that wrote last, 0 before the first */
#define SHUNTER_H_CONTROLLER_HEARTBEAT_NS 264 /* when it last wrote, at least every second */
#define SHUNTER_H_CONTROLLER_CYCLES 272 /* duty cycles of this controller */
#define SHUNTER_H_FRONT_END_WANTED 280 /* 0: start no network front end; else a number that other settings change */
#define SHUNTER_H_STRICT_ORDER 288 /* turns of strict models on a slice, one of ORDER_... */
#define SHUNTER_H_BEST_EFFORT_ORDER 296 /* turns of best-effort models, one of ORDER_... */
#define SHUNTER_H_EXCLUSIVE 304 /* 1: strict and best effort take turns too, nothing is preempted */
#define SHUNTER_H_MAX_HOLD_US 312 /* a hold without progress for longer is ignored, 0: the default */
#define SHUNTER_H_LONGEST_PARK_US 320 /* a batch that was parked for longer goes on, 0: the default */
#define SHUNTER_H_MEMORY_WANTED 328 /* 1: parked work shall drop what it holds and begin anew */
#define SHUNTER_H_STRICT_KEY 336 /* SHA-256 of the secret that claims of strict need [4] */
#define SHUNTER_H_SETTINGS_INVALID 368 /* 1: the settings file cannot be used, the last good holds */
#define SHUNTER_H_READY 384 /* 1 when the page is complete; written last */
#define SHUNTER_H_FRONT_END_PID 512 /* pid of the network front end, 0 before the first */
#define SHUNTER_H_FRONT_END_BEAT_NS 520 /* when it last wrote */
#define SHUNTER_H_FRONT_END_PORT 528 /* UDP port that it serves */
#define SHUNTER_H_FRONT_END_SESSIONS 536 /* open sessions */
#define SHUNTER_H_FRONT_END_RTT_NS 544 /* sum of the round trips of hellos */
#define SHUNTER_H_FRONT_END_RTT_COUNT 552 /* round trips that were measured */
#define SHUNTER_H_FRONT_END_COUNTER_COUNT 560 /* counters below; written after their names */
#define SHUNTER_H_FRONT_END_COUNTER_NAMES 568 /* UTF-8, zero padded [64] */
#define SHUNTER_H_FRONT_END_COUNTERS 2104 /* since the front end started [64] */
#define SHUNTER_H_LANDING_BLOCKS 2616 /* blocks of the pool in which payloads land */
#define SHUNTER_H_LANDING_FREE 2624 /* of these, used by nobody */
#define SHUNTER_H_LANDING_WANTED 2632 /* blocks that all queues, full, and what is received would use */
#define SHUNTER_H_MIG_CHANGING 2688 /* GPUs whose instances are being changed now */
#define SHUNTER_H_MIG_DONE 2696 /* number of the layouts wanted last that are there or were given up */
#define SHUNTER_H_MIG_CHANGES 2704 /* changes that led to the wanted layout */
#define SHUNTER_H_MIG_UNDONE 2712 /* changes that were undone, or not begun */
#define SHUNTER_H_MIG_LAYOUTS 2720 /* of each GPU by its index, for people */
#define SHUNTER_H_MIG_PROBLEM 3232 /* why the last change was not possible, for people */
#define SHUNTER_K_HOLDER_PID 0 /* process that owns this word, 0 when free */
#define SHUNTER_K_HOLDER_HEARTBEAT_NS 8 /* a reader ignores a holder whose heartbeat is old */
#define SHUNTER_K_HOLD_NUMBER 16 /* 0: nothing is held; else another after each change of slices */
#define SHUNTER_K_HOLD_SINCE_NS 24 /* when slices were last added to what is held */
#define SHUNTER_K_HOLD_PROGRESS_NS 32 /* when strict work that holds last began or ended a batch */
#define SHUNTER_K_HOLD_MODELS 40 /* mask of slots: whose strict work holds [2] */
#define SHUNTER_K_HOLD_SLICES 56 /* best-effort work on these must stand still, if the number is not 0 [9] */
#define SHUNTER_R_RUNNER_PID 0 /* process that owns this line, 0 when free */
#define SHUNTER_R_RUNNER_HEARTBEAT_NS 8 /* when it last wrote */
#define SHUNTER_R_RUNNER_SLOT 16 /* slot of its model, -1 for none */
#define SHUNTER_R_RUNNER_CLASS 24 /* class of its work, by index */
#define SHUNTER_R_RUNNER_SLICES 32 /* the slices that it runs on [9] */
#define SHUNTER_R_RUNNER_STATE 104 /* one of RUNNER_... */
#define SHUNTER_R_RUNNER_SINCE_NS 112 /* since when it is in this state */
#define SHUNTER_R_PREEMPTIONS 120 /* times that it was parked */
#define SHUNTER_R_PARKED_NS 128 /* sum of the times parked */
#define SHUNTER_R_YIELD_NS 136 /* sum of the times from raised word to parked */
#define SHUNTER_R_YIELD_WORST_NS 144 /* the longest of these */
#define SHUNTER_R_RESTORE_NS 152 /* sum of the times from lowered word to running */
#define SHUNTER_R_DROPS 160 /* times that it gave its memory back and began a batch anew */
#define SHUNTER_R_BATCHES 168 /* batches that it ran */
#define SHUNTER_R_SEGMENTS 176 /* parts of one pass between which it can stand still, 0: unknown */
#define SHUNTER_R_SEGMENT_NS 184 /* time of the longest part */
#define SHUNTER_R_SOLO_NS 192 /* time of one pass alone */
#define SHUNTER_R_SOLO_CPU_NS 200 /* processor time of one pass alone, 0: unknown */
#define SHUNTER_R_SOLO_BATCH 208 /* size of the batch that these were measured with */
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
#define SHUNTER_S_DEFAULT_VERSION 1224 /* the model's version for requests that name none */
#define SHUNTER_S_PROBLEM 1352 /* why a worker ended or did not load last, for people */
#define SHUNTER_S_UPDATED_NS 1664 /* time of the last change below */
#define SHUNTER_S_ARRIVALS 1672 /* requests offered, by class [2] */
#define SHUNTER_S_QUEUED 1688 /* requests waiting now, by class [2] */
#define SHUNTER_S_OLDEST_ARRIVAL_NS 1704 /* arrival of the oldest waiting, 0 for none [2] */
#define SHUNTER_S_ANSWERED 1720 /* answered by a worker with the reply's own status [2] */
#define SHUNTER_S_ANSWERED_LATE 1736 /* of these, after their deadline [2] */
#define SHUNTER_S_EXPIRED 1752 /* answered 504 before they ran [2] */
#define SHUNTER_S_REJECTED 1768 /* refused at the door: queue full, draining, bad header [2] */
#define SHUNTER_S_FAILED 1784 /* answered 5xx by us: worker death, drain time-out [2] */
#define SHUNTER_S_ABANDONED 1800 /* client hung up while waiting [2] */
#define SHUNTER_S_RETRIED 1816 /* requests run again after a worker died */
#define SHUNTER_S_POISONED 1824 /* requests that killed two workers */
#define SHUNTER_S_IN_FLIGHT_REQUESTS 1832 /* sent, not answered */
#define SHUNTER_S_IN_FLIGHT_BATCHES 1840 /* sent, not answered */
#define SHUNTER_S_READY_WORKERS 1848 /* loaded workers of the current generation */
#define SHUNTER_S_BUSY_WORKERS 1856 /* of these, with a batch */
#define SHUNTER_S_THRESHOLD_MILLI 1864 /* adaptive threshold now, in 1/1000 requests */
#define SHUNTER_S_BATCHES_BY_SIZE 1872 /* batches answered, by size bucket [16] */
#define SHUNTER_S_SERVICE_NS_BY_SIZE 2000 /* sum of their service times [16] */
#define SHUNTER_S_BATCH_REQUESTS 2128 /* requests in the batches answered */
#define SHUNTER_S_GOOD 2136 /* answered in time or without a deadline, not 5xx, by class [2] */
#define SHUNTER_S_SLO_MET 2152 /* of these, with a deadline [2] */
#define SHUNTER_S_SLO_LATE 2168 /* with a deadline, answered after it, not 5xx [2] */
#define SHUNTER_S_SLO_REJECTED 2184 /* with a deadline, refused at the door [2] */
#define SHUNTER_S_SLO_FAILED 2200 /* with a deadline, answered 5xx by a worker or by us [2] */
#define SHUNTER_S_SLO_ABANDONED 2216 /* with a deadline, client hung up while waiting [2] */
#define SHUNTER_S_QUEUE_NS 2232 /* sum of the waits of what was answered, by class [2] */
#define SHUNTER_S_SERVICE_NS 2248 /* sum of the service times of what was answered [2] */
#define SHUNTER_S_LATENCY_NS 2264 /* sum of the times from arrival to answer [2] */
#define SHUNTER_S_QUEUE_TIMES 2280 /* histogram by class, then bucket [32] */
#define SHUNTER_S_SERVICE_TIMES 2536 /* histogram by class, then bucket [32] */
#define SHUNTER_S_LATENCY_TIMES 2792 /* histogram by class, then bucket [32] */
#define SHUNTER_S_STRICT_BATCHES 3048 /* strict batches answered, by size bucket [16] */
#define SHUNTER_S_STRICT_BATCH_NS 3176 /* sum of their service times [16] */
#define SHUNTER_S_ATTAINMENT 3304 /* 1 + millionths in time, last minute; 0: not told [2] */
#define SHUNTER_S_CHANGE_REQUEST 3328 /* the wanted_request taken up last, 0 for none */
#define SHUNTER_S_CHANGE_STATE 3336 /* what became of it, one of CHANGE_... */
#define SHUNTER_S_GROUP_READY 3456 /* loaded workers */
#define SHUNTER_S_GROUP_BUSY 3464 /* of these, with a batch */
#define SHUNTER_S_GROUP_BATCHES 3472 /* batches answered */
#define SHUNTER_S_GROUP_REQUESTS 3480 /* requests answered */
#define SHUNTER_S_GROUP_CAP 3488 /* batch cap of the group's own configuration */
#define SHUNTER_S_GROUP_THREADS 3496 /* threads per worker, 0 when not set */
#define SHUNTER_S_GROUP_FIXED_NS 3504 /* fitted latency of a batch = fixed + n * per_request */
#define SHUNTER_S_GROUP_PER_REQUEST_NS 3512 /* see group_fixed_ns */
#define SHUNTER_S_GROUP_ERROR_NS 3520 /* mean absolute error of the predictions */
#define SHUNTER_S_GROUP_FITTED 3528 /* batches that the fit has seen, 0: nothing is known */
#define SHUNTER_S_GROUP_INSTANCES 3536 /* workers that the configuration asks for */
#define SHUNTER_S_GROUP_SLICES 3544 /* slices that its workers may run on [9] */
#define SHUNTER_S_GROUP_YIELDS 3616 /* 1: its workers stand still for strict work */
#define SHUNTER_S_GROUP_CLASSES 3624 /* mask of the classes that it takes, 0: all */
#define SHUNTER_S_GROUP_ATTAINMENT 3632 /* as attainment, of what its workers answered [2] */
#define SHUNTER_S_GROUP_DEVICE 3648 /* CUDA_VISIBLE_DEVICES of its workers, cut */
#define SHUNTER_S_COMMAND_SEQUENCE 5504 /* seqlock: odd while commands change, 0 never written */
#define SHUNTER_S_ALPHA_MILLIONTHS 5512 /* weight of the old threshold when it rises, 0..999999 */
#define SHUNTER_S_THRESHOLD_CAP_MILLI 5520 /* upper bound of the threshold, in 1/1000 requests */
#define SHUNTER_S_THRESHOLD_FIXED_MILLI 5528 /* 0: adapt; else the threshold itself */
#define SHUNTER_S_MAX_WAIT_US 5536 /* deliberate wait, at most registered_max_wait_us */
#define SHUNTER_S_MIX_CLASSES 5544 /* 1: one batch may hold both classes */
#define SHUNTER_S_AGEING_US 5552 /* best effort that waits goes first if none began or ended in this time, 0 never */
#define SHUNTER_S_AHEAD_BATCHES 5560 /* batches sent to a busy worker, 0 or 1 */
#define SHUNTER_S_LATENCY_FIXED_NS 5568 /* latency of a batch until the fit knows it, 0: unknown */
#define SHUNTER_S_LATENCY_PER_REQUEST_NS 5576 /* see latency_fixed_ns */
#define SHUNTER_S_ADMISSION 5584 /* 1: refuse what would be answered too late */
#define SHUNTER_S_MARGIN_US 5592 /* how long before a deadline an answer shall be ready */
#define SHUNTER_S_WANTED_REQUEST 5600 /* raised when another configuration is wanted, 0 for none */
#define SHUNTER_S_WANTED_GROUPS 5608 /* worker groups of that configuration */
#define SHUNTER_S_WANTED_PIN 5616 /* 1: its workers choose and keep cores of their own */
#define SHUNTER_S_COMMAND_CAP 5632 /* batch cap, 0: the group's own */
#define SHUNTER_S_WEIGHT_MILLI 5640 /* factor of the cap for the class, in 1/1000; 0: never [2] */
#define SHUNTER_S_PREFERENCE 5656 /* groups with a lower number are filled first [2] */
#define SHUNTER_S_WANTED_INSTANCES 5672 /* of the wanted configuration, as the next two */
#define SHUNTER_S_WANTED_THREADS 5680 /* threads of each instance */
#define SHUNTER_S_WANTED_BATCH 5688 /* largest batch of each instance */
#define SHUNTER_S_WANTED_CPUS 5696 /* slices of CPUs for its workers, 0: as wanted_pin says [8] */
#define SHUNTER_S_WANTED_DEVICE 5760 /* name of their device or a part of one */
#define SHUNTER_S_NETWORK_WORKERS 7680 /* workers that are attached to the network front end */
#define SHUNTER_S_NETWORK_ENTRIES 7688 /* entries of the tensor queue */
#define SHUNTER_S_NETWORK_FREE 7696 /* of these, used by nobody */
#define SHUNTER_S_NETWORK_QUEUED 7704 /* requests that wait for a worker */
#define SHUNTER_S_NETWORK_SESSIONS 7712 /* open sessions */
#define SHUNTER_S_NETWORK_CREDIT 7720 /* requests that clients may have on their way */
#define SHUNTER_S_NETWORK_NEEDS_MB 7728 /* memory of its queue, more than queue_mb allows; 0: it fits */
#define SHUNTER_S_PADDING_KNOWN 7808 /* 1: the words below are the controller's */
#define SHUNTER_S_BESIDE 7816 /* mask of slots: this model's best effort may run beside their strict work [2] */
#define SHUNTER_S_STRICT_CLAIMS 7832 /* which requests may say that they are strict, CLAIMS_... */
#define SHUNTER_S_NETWORK_ARRIVALS 7936 /* requests that came whole by the network, by class [2] */
#define SHUNTER_S_NETWORK_ANSWERED 7952 /* answered by a worker, and not with an error [2] */
#define SHUNTER_S_NETWORK_EXPIRED 7968 /* answered 504 before they ran [2] */
#define SHUNTER_S_NETWORK_REJECTED 7984 /* refused at once: admission [2] */
#define SHUNTER_S_NETWORK_FAILED 8000 /* ended with an error, of the handler or of ours [2] */
#define SHUNTER_S_NETWORK_ABANDONED 8016 /* cancelled or client gone while waiting [2] */
#define SHUNTER_S_NETWORK_SLO_MET 8032 /* of those answered: with a deadline, in time [2] */
#define SHUNTER_S_NETWORK_SLO_LATE 8048 /* with a deadline, answered after it [2] */
#define SHUNTER_S_NETWORK_SLO_REJECTED 8064 /* with a deadline, refused [2] */
#define SHUNTER_S_NETWORK_SLO_FAILED 8080 /* with a deadline, ended with an error [2] */
#define SHUNTER_S_NETWORK_SLO_ABANDONED 8096 /* with a deadline, abandoned [2] */
#define SHUNTER_S_NETWORK_LATENCY_NS 8112 /* sum of the times from arrival to answer [2] */
#define SHUNTER_S_NETWORK_LATENCY_TIMES 8128 /* histogram by class, bucket [32] */
#define SHUNTER_S_NETWORK_BATCHES_BY_SIZE 8384 /* batches by rows, by bucket [16] */
#define SHUNTER_S_NETWORK_BATCH_REQUESTS 8512 /* rows of the batches answered */
#define SHUNTER_S_NETWORK_ATTAINMENT_PPM 8520 /* in time, last minute, by class; -1: none [2] */

_Static_assert(SHUNTER_SLOT_SIZE % 128 == 0, "slots start on a line");
_Static_assert(SHUNTER_SLOTS_OFFSET + SHUNTER_SLOT_COUNT * SHUNTER_SLOT_SIZE ==
               SHUNTER_PAGE_SIZE, "the page holds header, holders and slots");

/* Offsets of the queue page. Q_ offsets in its header, W_ in a worker, E_ in an entry. */
#define SHUNTER_MAX_TENSORS 64 /* inputs, and outputs, of a function */
#define SHUNTER_WORKER_COUNT 64 /* workers of a function */
#define SHUNTER_MAX_ENTRIES 4096 /* entries of a queue */
#define SHUNTER_AHEAD 2 /* batches that a worker may hold */
#define SHUNTER_PARTS_AHEAD 8 /* places for the next parts of an answer */
#define SHUNTER_BLOCK 65536 /* bytes of a block of the landing pool */
#define SHUNTER_ENTRY_OK 200 /* status of an entry: answered */
#define SHUNTER_ENTRY_BAD 400 /* status of an entry: not the model's tensors */
#define SHUNTER_ENTRY_FAILED 500 /* status of an entry: the handler failed */
#define SHUNTER_ENTRY_SAYS 1000 /* above: it failed with that many less, and says why */
#define SHUNTER_QUEUE_MAGIC 0x515245544e554853ULL /* 'SHUNTERQ', little-endian */
#define SHUNTER_QUEUE_VERSION 6 /* raised when the queue page changes */
#define SHUNTER_QUEUE_WORKERS_OFFSET 1280 /* offset of worker 0 */
#define SHUNTER_WORKER_SIZE 256 /* bytes of one worker */
#define SHUNTER_QUEUE_ENTRIES_OFFSET 17664 /* offset of entry 0 */
#define SHUNTER_ENTRY_SIZE 384 /* bytes of one entry's record */
#define SHUNTER_Q_QUEUE_MAGIC 0 /* QUEUE_MAGIC; written last */
#define SHUNTER_Q_QUEUE_VERSION 8 /* QUEUE_VERSION */
#define SHUNTER_Q_QUEUE_BYTES 16 /* bytes of the whole page */
#define SHUNTER_Q_QUEUE_FUNC 24 /* func_id */
#define SHUNTER_Q_QUEUE_ENTRIES 32 /* entries of every ring */
#define SHUNTER_Q_QUEUE_INPUTS 40 /* input tensors */
#define SHUNTER_Q_QUEUE_OUTPUTS 48 /* output tensors */
#define SHUNTER_Q_QUEUE_INPUT_BYTES 56 /* of one entry, by tensor [64] */
#define SHUNTER_Q_QUEUE_OUTPUT_BYTES 568 /* of one entry, by tensor [64] */
#define SHUNTER_Q_QUEUE_PIECES 1080 /* most pieces of the input of an entry */
#define SHUNTER_Q_QUEUE_PACKED 1088 /* 1: inputs and results are runs of any length up to these */
#define SHUNTER_Q_FRONT_END_PID 1152 /* process that owns the queue */
#define SHUNTER_Q_FRONT_END_ASLEEP 1160 /* 1: it waits for its doorbell */
#define SHUNTER_Q_FRONT_END_WANTS_DONE 1168 /* 1: ring it when a batch is done */
#define SHUNTER_Q_FRONT_END_SINCE_NS 1176 /* since when the first request waits for a worker; 0: none */
#define SHUNTER_W_BATCH_NUMBER 0 /* batches given so far; written last */
#define SHUNTER_W_BATCH_FIRST 8 /* first entry, of batch n in place n % AHEAD [2] */
#define SHUNTER_W_BATCH_COUNT 24 /* entries of it, each names the next; BATCH_TAKEN [2] */
#define SHUNTER_W_DONE_NUMBER 128 /* batches answered so far; written last */
#define SHUNTER_W_WORKER_ASLEEP 136 /* 1: it waits for its doorbell */
#define SHUNTER_W_DONE_NS 144 /* when batch n was done, in place n % AHEAD [2] */
#define SHUNTER_W_WORKER_GATHERED 160 /* bytes of inputs that it has copied so far */
#define SHUNTER_W_WORKER_TAKEN 168 /* batches taken so far: those not done may have run in part */
#define SHUNTER_W_WORKER_EARLY 176 /* how often it has answered a part of a batch; written last */
#define SHUNTER_E_ENTRY_REQ_ID 0 /* request */
#define SHUNTER_E_ENTRY_SESSION 8 /* session */
#define SHUNTER_E_ENTRY_FLAGS 16 /* HDR_TAG, ACK_REQ: of the answer; IDEMPOTENT: it may run twice */
#define SHUNTER_E_ENTRY_SEGMENT 24 /* largest payload of one datagram of the answer */
#define SHUNTER_E_ENTRY_PKT_NO 32 /* of the answer's first datagram */
#define SHUNTER_E_ENTRY_CREDIT 40 /* grant that the answer carries */
#define SHUNTER_E_ENTRY_DIRECT 48 /* not 0: the worker sends the answer; if packed, so many bytes */
#define SHUNTER_E_ENTRY_KEY 56 /* of the session, for the tag */
#define SHUNTER_E_ENTRY_PEER 72 /* socket address, and the local one that was asked */
#define SHUNTER_E_ENTRY_NEXT 136 /* the next entry of the batch */
#define SHUNTER_E_ENTRY_PIECES 144 /* pieces of its input */
#define SHUNTER_E_ENTRY_BYTES 152 /* of its input where the queue is packed */
#define SHUNTER_E_ENTRY_ROWS 160 /* of its request, from the dispatcher; 1 unless it is a batch */
#define SHUNTER_E_ENTRY_PLACES 168 /* entries for parts, n in place n % PARTS_AHEAD [8] */
#define SHUNTER_E_ENTRY_GIVEN 232 /* places given so far; written last */
#define SHUNTER_E_ENTRY_UNWANTED 240 /* 1: nobody waits for it any more */
#define SHUNTER_E_ENTRY_STATUS 256 /* 0: none yet; one of STATUS_... */
#define SHUNTER_E_ENTRY_RESULT_BYTES 264 /* of its result where the queue is packed */
#define SHUNTER_E_ENTRY_PARTS 272 /* parts in their places; the highest bit: no more follow */
#define SHUNTER_E_ENTRY_EARLY_NS 280 /* when it was answered, if before its batch is done; else 0 */
#define SHUNTER_LAYOUT_DIGEST 0x64f24f37213bcbc4ULL

#endif
