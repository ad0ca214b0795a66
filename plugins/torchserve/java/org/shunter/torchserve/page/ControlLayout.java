// Emitted by python -m shunter.batching.emit. Do not edit.
package org.shunter.torchserve.page;

/** Offsets of the control page. H_ in the header, K_ in a holder, R_ in a runner, S_ in a slot; [n] words in a row. */
public final class ControlLayout {
    private ControlLayout() {}

    /** raised when a field is added */
    public static final int LAYOUT_VERSION = 7;
    /** 'SHUNTER' and a zero, little-endian */
    public static final long MAGIC = 0x5245544e554853L;
    /** bytes of the control page */
    public static final int PAGE_SIZE = 1036928;
    /** bytes before holder 0 */
    public static final int HEADER_SIZE = 2688;
    /** bytes of one holder */
    public static final int HOLDER_SIZE = 128;
    /** holders */
    public static final int HOLDER_COUNT = 16;
    /** offset of runner 0 */
    public static final int RUNNERS_OFFSET = 4736;
    /** bytes of one runner */
    public static final int RUNNER_SIZE = 256;
    /** runners */
    public static final int RUNNER_COUNT = 64;
    /** offset of slot 0 */
    public static final int SLOTS_OFFSET = 21120;
    /** bytes of one slot */
    public static final int SLOT_SIZE = 7936;
    /** slots */
    public static final int SLOT_COUNT = 128;
    /** words of a mask of slots */
    public static final int SLOT_WORDS = 2;
    /** slices that are CPUs; those of device 0 follow */
    public static final int CPU_SLICES = 512;
    /** devices that have slices of their own */
    public static final int DEVICE_COUNT = 8;
    /** slices of each device */
    public static final int DEVICE_SLICES = 8;
    /** bytes of the name of a device, or a part of one */
    public static final int DEVICE_BYTES = 64;
    /** words of a set of slices */
    public static final int SLICE_WORDS = 9;
    /** counters of the network front end */
    public static final int COUNTER_COUNT = 64;
    /** bytes of the name of each */
    public static final int COUNTER_NAME_BYTES = 24;
    /** worker groups per slot */
    public static final int GROUP_COUNT = 8;
    /** bytes between groups */
    public static final int GROUP_STRIDE = 256;
    /** batch size buckets, by power of two */
    public static final int SIZE_BUCKETS = 16;
    /** time buckets, by power of two */
    public static final int TIME_BUCKETS = 16;
    /** the first bucket ends at 2 to this, in ns */
    public static final int TIME_BUCKET_SHIFT = 18;
    /** class index */
    public static final int STRICT = 0;
    /** class index */
    public static final int BEST_EFFORT = 1;
    /** state of a change */
    public static final int CHANGE_NONE = 0;
    /** state of a change */
    public static final int CHANGE_UNDER_WAY = 1;
    /** state of a change */
    public static final int CHANGE_SERVES = 2;
    /** state of a change */
    public static final int CHANGE_UNDONE = 3;
    /** state of a runner */
    public static final int RUNNER_RUNNING = 0;
    /** state of a runner */
    public static final int RUNNER_YIELDING = 1;
    /** state of a runner */
    public static final int RUNNER_PARKED = 2;
    /** state of a runner */
    public static final int RUNNER_RESTORING = 3;
    /** turns of models on a slice */
    public static final int ORDER_CONCURRENT = 0;
    /** turns of models on a slice */
    public static final int ORDER_FIFO = 1;
    /** turns of models on a slice */
    public static final int ORDER_EDF = 2;
    /** turns of models on a slice */
    public static final int ORDER_ROUND_ROBIN = 3;
    /** who may say that he is strict */
    public static final int CLAIMS_UNKNOWN = 0;
    /** who may say that he is strict */
    public static final int CLAIMS_ALL = 1;
    /** who may say that he is strict */
    public static final int CLAIMS_NONE = 2;
    /** who may say that he is strict */
    public static final int CLAIMS_WITH_KEY = 3;
    /** bytes of model_name in a slot */
    public static final int MODEL_NAME_BYTES = 256;
    /** bytes of model_version in a slot */
    public static final int MODEL_VERSION_BYTES = 128;
    /** bytes of archive in a slot */
    public static final int ARCHIVE_BYTES = 512;
    /** bytes of last_change in a slot */
    public static final int LAST_CHANGE_BYTES = 256;
    /** bytes of default_version in a slot */
    public static final int DEFAULT_VERSION_BYTES = 128;
    /** bytes of problem in a slot */
    public static final int PROBLEM_BYTES = 256;
    /** bytes of wanted_device in a slot */
    public static final int WANTED_DEVICE_BYTES = 64;
    /** MAGIC */
    public static final int H_MAGIC = 0;
    /** LAYOUT_VERSION */
    public static final int H_LAYOUT_VERSION = 8;
    /** bytes of the whole page */
    public static final int H_PAGE_SIZE = 16;
    /** bytes before holder 0 */
    public static final int H_HEADER_SIZE = 24;
    /** bytes of one slot */
    public static final int H_SLOT_SIZE = 32;
    /** number of slots */
    public static final int H_SLOT_COUNT = 40;
    /** pid of the JVM that created the page */
    public static final int H_OWNER_PID = 48;
    /** wall clock at creation */
    public static final int H_CREATED_UNIX_NS = 56;
    /** written by the JVM at least every second */
    public static final int H_JVM_HEARTBEAT_NS = 128;
    /** pid of the controller that wrote last, 0 before the first */
    public static final int H_CONTROLLER_PID = 256;
    /** when it last wrote, at least every second */
    public static final int H_CONTROLLER_HEARTBEAT_NS = 264;
    /** duty cycles of this controller */
    public static final int H_CONTROLLER_CYCLES = 272;
    /** 0: start no network front end; else a number that other settings change */
    public static final int H_FRONT_END_WANTED = 280;
    /** turns of strict models on a slice, one of ORDER_... */
    public static final int H_STRICT_ORDER = 288;
    /** turns of best-effort models, one of ORDER_... */
    public static final int H_BEST_EFFORT_ORDER = 296;
    /** 1: strict and best effort take turns too, nothing is preempted */
    public static final int H_EXCLUSIVE = 304;
    /** a hold without progress for longer is ignored, 0: the default */
    public static final int H_MAX_HOLD_US = 312;
    /** a batch that was parked for longer goes on, 0: the default */
    public static final int H_LONGEST_PARK_US = 320;
    /** 1: parked work shall drop what it holds and begin anew */
    public static final int H_MEMORY_WANTED = 328;
    /** SHA-256 of the secret that claims of strict need [4] */
    public static final int H_STRICT_KEY = 336;
    /** 1: the settings file cannot be used, the last good holds */
    public static final int H_SETTINGS_INVALID = 368;
    /** 1 when the page is complete; written last */
    public static final int H_READY = 384;
    /** pid of the network front end, 0 before the first */
    public static final int H_FRONT_END_PID = 512;
    /** when it last wrote */
    public static final int H_FRONT_END_BEAT_NS = 520;
    /** UDP port that it serves */
    public static final int H_FRONT_END_PORT = 528;
    /** open sessions */
    public static final int H_FRONT_END_SESSIONS = 536;
    /** sum of the round trips of hellos */
    public static final int H_FRONT_END_RTT_NS = 544;
    /** round trips that were measured */
    public static final int H_FRONT_END_RTT_COUNT = 552;
    /** counters below; written after their names */
    public static final int H_FRONT_END_COUNTER_COUNT = 560;
    /** UTF-8, zero padded [64] */
    public static final int H_FRONT_END_COUNTER_NAMES = 568;
    /** since the front end started [64] */
    public static final int H_FRONT_END_COUNTERS = 2104;
    /** process that owns this word, 0 when free */
    public static final int K_HOLDER_PID = 0;
    /** a reader ignores a holder whose heartbeat is old */
    public static final int K_HOLDER_HEARTBEAT_NS = 8;
    /** 0: nothing is held; else another after each change of slices */
    public static final int K_HOLD_NUMBER = 16;
    /** when slices were last added to what is held */
    public static final int K_HOLD_SINCE_NS = 24;
    /** when strict work that holds last began or ended a batch */
    public static final int K_HOLD_PROGRESS_NS = 32;
    /** mask of slots: whose strict work holds [2] */
    public static final int K_HOLD_MODELS = 40;
    /** best-effort work on these must stand still, if the number is not 0 [9] */
    public static final int K_HOLD_SLICES = 56;
    /** process that owns this line, 0 when free */
    public static final int R_RUNNER_PID = 0;
    /** when it last wrote */
    public static final int R_RUNNER_HEARTBEAT_NS = 8;
    /** slot of its model, -1 for none */
    public static final int R_RUNNER_SLOT = 16;
    /** class of its work, by index */
    public static final int R_RUNNER_CLASS = 24;
    /** the slices that it runs on [9] */
    public static final int R_RUNNER_SLICES = 32;
    /** one of RUNNER_... */
    public static final int R_RUNNER_STATE = 104;
    /** since when it is in this state */
    public static final int R_RUNNER_SINCE_NS = 112;
    /** times that it was parked */
    public static final int R_PREEMPTIONS = 120;
    /** sum of the times parked */
    public static final int R_PARKED_NS = 128;
    /** sum of the times from raised word to parked */
    public static final int R_YIELD_NS = 136;
    /** the longest of these */
    public static final int R_YIELD_WORST_NS = 144;
    /** sum of the times from lowered word to running */
    public static final int R_RESTORE_NS = 152;
    /** times that it gave its memory back and began a batch anew */
    public static final int R_DROPS = 160;
    /** batches that it ran */
    public static final int R_BATCHES = 168;
    /** parts of one pass between which it can stand still, 0: unknown */
    public static final int R_SEGMENTS = 176;
    /** time of the longest part */
    public static final int R_SEGMENT_NS = 184;
    /** time of one pass alone */
    public static final int R_SOLO_NS = 192;
    /** processor time of one pass alone, 0: unknown */
    public static final int R_SOLO_CPU_NS = 200;
    /** size of the batch that these were measured with */
    public static final int R_SOLO_BATCH = 208;
    /** seqlock: odd while identity changes */
    public static final int S_SLOT_SEQUENCE = 0;
    /** 0 free, 1 live */
    public static final int S_SLOT_STATE = 8;
    /** current generation id of the model version */
    public static final int S_GENERATION = 16;
    /** ceiling of every batch */
    public static final int S_REGISTERED_BATCH_SIZE = 24;
    /** ceiling of every deliberate wait */
    public static final int S_REGISTERED_MAX_WAIT_US = 32;
    /** requests that may wait */
    public static final int S_QUEUE_CAPACITY = 40;
    /** worker groups in use */
    public static final int S_GROUP_COUNT = 48;
    /** default deadline of strict requests, 0 for none */
    public static final int S_SLO_US = 56;
    /** UTF-8, zero padded */
    public static final int S_MODEL_NAME = 64;
    /** UTF-8, zero padded */
    public static final int S_MODEL_VERSION = 320;
    /** 1: the controller may change the configuration */
    public static final int S_AUTO = 448;
    /** path of the model archive, UTF-8, zero padded */
    public static final int S_ARCHIVE = 456;
    /** what became of the last change, for people */
    public static final int S_LAST_CHANGE = 968;
    /** the model's version for requests that name none */
    public static final int S_DEFAULT_VERSION = 1224;
    /** why a worker ended or did not load last, for people */
    public static final int S_PROBLEM = 1352;
    /** time of the last change below */
    public static final int S_UPDATED_NS = 1664;
    /** requests offered, by class [2] */
    public static final int S_ARRIVALS = 1672;
    /** requests waiting now, by class [2] */
    public static final int S_QUEUED = 1688;
    /** arrival of the oldest waiting, 0 for none [2] */
    public static final int S_OLDEST_ARRIVAL_NS = 1704;
    /** answered by a worker with the reply's own status [2] */
    public static final int S_ANSWERED = 1720;
    /** of these, after their deadline [2] */
    public static final int S_ANSWERED_LATE = 1736;
    /** answered 504 before they ran [2] */
    public static final int S_EXPIRED = 1752;
    /** refused at the door: queue full, draining, bad header [2] */
    public static final int S_REJECTED = 1768;
    /** answered 5xx by us: worker death, drain time-out [2] */
    public static final int S_FAILED = 1784;
    /** client hung up while waiting [2] */
    public static final int S_ABANDONED = 1800;
    /** requests run again after a worker died */
    public static final int S_RETRIED = 1816;
    /** requests that killed two workers */
    public static final int S_POISONED = 1824;
    /** sent, not answered */
    public static final int S_IN_FLIGHT_REQUESTS = 1832;
    /** sent, not answered */
    public static final int S_IN_FLIGHT_BATCHES = 1840;
    /** loaded workers of the current generation */
    public static final int S_READY_WORKERS = 1848;
    /** of these, with a batch */
    public static final int S_BUSY_WORKERS = 1856;
    /** adaptive threshold now, in 1/1000 requests */
    public static final int S_THRESHOLD_MILLI = 1864;
    /** batches answered, by size bucket [16] */
    public static final int S_BATCHES_BY_SIZE = 1872;
    /** sum of their service times [16] */
    public static final int S_SERVICE_NS_BY_SIZE = 2000;
    /** requests in the batches answered */
    public static final int S_BATCH_REQUESTS = 2128;
    /** answered in time or without a deadline, not 5xx, by class [2] */
    public static final int S_GOOD = 2136;
    /** of these, with a deadline [2] */
    public static final int S_SLO_MET = 2152;
    /** with a deadline, answered after it, not 5xx [2] */
    public static final int S_SLO_LATE = 2168;
    /** with a deadline, refused at the door [2] */
    public static final int S_SLO_REJECTED = 2184;
    /** with a deadline, answered 5xx by a worker or by us [2] */
    public static final int S_SLO_FAILED = 2200;
    /** with a deadline, client hung up while waiting [2] */
    public static final int S_SLO_ABANDONED = 2216;
    /** sum of the waits of what was answered, by class [2] */
    public static final int S_QUEUE_NS = 2232;
    /** sum of the service times of what was answered [2] */
    public static final int S_SERVICE_NS = 2248;
    /** sum of the times from arrival to answer [2] */
    public static final int S_LATENCY_NS = 2264;
    /** histogram by class, then bucket [32] */
    public static final int S_QUEUE_TIMES = 2280;
    /** histogram by class, then bucket [32] */
    public static final int S_SERVICE_TIMES = 2536;
    /** histogram by class, then bucket [32] */
    public static final int S_LATENCY_TIMES = 2792;
    /** strict batches answered, by size bucket [16] */
    public static final int S_STRICT_BATCHES = 3048;
    /** sum of their service times [16] */
    public static final int S_STRICT_BATCH_NS = 3176;
    /** the wanted_request taken up last, 0 for none */
    public static final int S_CHANGE_REQUEST = 3328;
    /** what became of it, one of CHANGE_... */
    public static final int S_CHANGE_STATE = 3336;
    /** loaded workers */
    public static final int S_GROUP_READY = 3456;
    /** of these, with a batch */
    public static final int S_GROUP_BUSY = 3464;
    /** batches answered */
    public static final int S_GROUP_BATCHES = 3472;
    /** requests answered */
    public static final int S_GROUP_REQUESTS = 3480;
    /** batch cap of the group's own configuration */
    public static final int S_GROUP_CAP = 3488;
    /** threads per worker, 0 when not set */
    public static final int S_GROUP_THREADS = 3496;
    /** fitted latency of a batch = fixed + n * per_request */
    public static final int S_GROUP_FIXED_NS = 3504;
    /** see group_fixed_ns */
    public static final int S_GROUP_PER_REQUEST_NS = 3512;
    /** mean absolute error of the predictions */
    public static final int S_GROUP_ERROR_NS = 3520;
    /** batches that the fit has seen, 0: nothing is known */
    public static final int S_GROUP_FITTED = 3528;
    /** workers that the configuration asks for */
    public static final int S_GROUP_INSTANCES = 3536;
    /** slices that its workers may run on [9] */
    public static final int S_GROUP_SLICES = 3544;
    /** 1: its workers stand still for strict work */
    public static final int S_GROUP_YIELDS = 3616;
    /** mask of the classes that it takes, 0: all */
    public static final int S_GROUP_CLASSES = 3624;
    /** seqlock: odd while commands change, 0 never written */
    public static final int S_COMMAND_SEQUENCE = 5504;
    /** weight of the old threshold when it rises, 0..999999 */
    public static final int S_ALPHA_MILLIONTHS = 5512;
    /** upper bound of the threshold, in 1/1000 requests */
    public static final int S_THRESHOLD_CAP_MILLI = 5520;
    /** 0: adapt; else the threshold itself */
    public static final int S_THRESHOLD_FIXED_MILLI = 5528;
    /** deliberate wait, at most registered_max_wait_us */
    public static final int S_MAX_WAIT_US = 5536;
    /** 1: one batch may hold both classes */
    public static final int S_MIX_CLASSES = 5544;
    /** one best-effort batch goes first in this time if one waits as long, 0 never */
    public static final int S_AGEING_US = 5552;
    /** batches sent to a busy worker, 0 or 1 */
    public static final int S_AHEAD_BATCHES = 5560;
    /** latency of a batch until the fit knows it, 0: unknown */
    public static final int S_LATENCY_FIXED_NS = 5568;
    /** see latency_fixed_ns */
    public static final int S_LATENCY_PER_REQUEST_NS = 5576;
    /** 0: threshold by what follows answers; else Rafiqi's quantum */
    public static final int S_QUANTUM_US = 5584;
    /** 1: refuse what would be answered too late */
    public static final int S_ADMISSION = 5592;
    /** how long before a deadline an answer shall be ready */
    public static final int S_MARGIN_US = 5600;
    /** raised when another configuration is wanted, 0 for none */
    public static final int S_WANTED_REQUEST = 5608;
    /** worker groups of that configuration */
    public static final int S_WANTED_GROUPS = 5616;
    /** 1: its workers choose and keep cores of their own */
    public static final int S_WANTED_PIN = 5624;
    /** batch cap, 0: the group's own */
    public static final int S_COMMAND_CAP = 5632;
    /** factor of the cap for the class, in 1/1000; 0: never [2] */
    public static final int S_WEIGHT_MILLI = 5640;
    /** groups with a lower number are filled first [2] */
    public static final int S_PREFERENCE = 5656;
    /** of the wanted configuration, as the next two */
    public static final int S_WANTED_INSTANCES = 5672;
    /** threads of each instance */
    public static final int S_WANTED_THREADS = 5680;
    /** largest batch of each instance */
    public static final int S_WANTED_BATCH = 5688;
    /** slices of CPUs for its workers, 0: as wanted_pin says [8] */
    public static final int S_WANTED_CPUS = 5696;
    /** name of their device or a part of one */
    public static final int S_WANTED_DEVICE = 5760;
    /** workers that are attached to the network front end */
    public static final int S_NETWORK_WORKERS = 7680;
    /** entries of the tensor queue */
    public static final int S_NETWORK_ENTRIES = 7688;
    /** of these, used by nobody */
    public static final int S_NETWORK_FREE = 7696;
    /** requests that wait for a worker */
    public static final int S_NETWORK_QUEUED = 7704;
    /** open sessions */
    public static final int S_NETWORK_SESSIONS = 7712;
    /** requests that clients may have on their way */
    public static final int S_NETWORK_CREDIT = 7720;
    /** memory of its queue, more than queue_mb allows; 0: it fits */
    public static final int S_NETWORK_NEEDS_MB = 7728;
    /** 1: the words below are the controller's */
    public static final int S_PADDING_KNOWN = 7808;
    /** mask of slots: this model's best effort may run beside their strict work [2] */
    public static final int S_BESIDE = 7816;
    /** which requests may say that they are strict, CLAIMS_... */
    public static final int S_STRICT_CLAIMS = 7832;
    /** inputs, and outputs, of a function */
    public static final int MAX_TENSORS = 8;
    /** workers of a function */
    public static final int WORKER_COUNT = 64;
    /** entries of a queue */
    public static final int MAX_ENTRIES = 4096;
}
