// Emitted by python -m shunter.batching.layout. Do not edit.
package org.shunter.torchserve;

/** Offsets of the control page. H_ offsets in the header, K_ in a holder, S_ in a slot; [n] words one after another. */
final class ControlLayout {
    private ControlLayout() {}

    /** raised when a field is added */
    static final int LAYOUT_VERSION = 3;
    /** 'SHUNTER' and a zero, little-endian */
    static final long MAGIC = 0x5245544e554853L;
    /** bytes of the control page */
    static final int PAGE_SIZE = 608768;
    /** bytes before holder 0 */
    static final int HEADER_SIZE = 512;
    /** bytes of one holder */
    static final int HOLDER_SIZE = 128;
    /** holders */
    static final int HOLDER_COUNT = 16;
    /** offset of slot 0 */
    static final int SLOTS_OFFSET = 2560;
    /** bytes of one slot */
    static final int SLOT_SIZE = 4736;
    /** slots */
    static final int SLOT_COUNT = 128;
    /** worker groups per slot */
    static final int GROUP_COUNT = 8;
    /** bytes between groups */
    static final int GROUP_STRIDE = 128;
    /** batch size buckets, by power of two */
    static final int SIZE_BUCKETS = 16;
    /** time buckets, by power of two */
    static final int TIME_BUCKETS = 16;
    /** the first bucket ends at 2 to this, in ns */
    static final int TIME_BUCKET_SHIFT = 18;
    /** class index */
    static final int STRICT = 0;
    /** class index */
    static final int BEST_EFFORT = 1;
    /** MAGIC */
    static final int H_MAGIC = 0;
    /** LAYOUT_VERSION */
    static final int H_LAYOUT_VERSION = 8;
    /** bytes of the whole page */
    static final int H_PAGE_SIZE = 16;
    /** bytes before holder 0 */
    static final int H_HEADER_SIZE = 24;
    /** bytes of one slot */
    static final int H_SLOT_SIZE = 32;
    /** number of slots */
    static final int H_SLOT_COUNT = 40;
    /** pid of the JVM that created the page */
    static final int H_OWNER_PID = 48;
    /** wall clock at creation */
    static final int H_CREATED_UNIX_NS = 56;
    /** written by the JVM at least every second */
    static final int H_JVM_HEARTBEAT_NS = 128;
    /** pid of the controller that wrote last, 0 before the first */
    static final int H_CONTROLLER_PID = 256;
    /** end of its last duty cycle */
    static final int H_CONTROLLER_HEARTBEAT_NS = 264;
    /** duty cycles of this controller */
    static final int H_CONTROLLER_CYCLES = 272;
    /** 1 when the page is complete; written last */
    static final int H_READY = 384;
    /** process that owns this word, 0 when free */
    static final int K_HOLDER_PID = 0;
    /** a reader ignores a holder whose heartbeat is old */
    static final int K_HOLDER_HEARTBEAT_NS = 8;
    /** bit s set: best-effort work on slice s must stand still */
    static final int K_HOLD_MASK = 16;
    /** when the mask last became non-zero */
    static final int K_HOLD_SINCE_NS = 24;
    /** seqlock: odd while identity changes */
    static final int S_SLOT_SEQUENCE = 0;
    /** 0 free, 1 live */
    static final int S_SLOT_STATE = 8;
    /** current generation id of the model version */
    static final int S_GENERATION = 16;
    /** ceiling of every batch */
    static final int S_REGISTERED_BATCH_SIZE = 24;
    /** ceiling of every deliberate wait */
    static final int S_REGISTERED_MAX_WAIT_US = 32;
    /** requests that may wait */
    static final int S_QUEUE_CAPACITY = 40;
    /** worker groups in use */
    static final int S_GROUP_COUNT = 48;
    /** default deadline of strict requests, 0 for none */
    static final int S_SLO_US = 56;
    /** UTF-8, zero padded */
    static final int S_MODEL_NAME = 64;
    /** UTF-8, zero padded */
    static final int S_MODEL_VERSION = 320;
    /** 1: the controller may change the configuration */
    static final int S_AUTO = 448;
    /** path of the model archive, UTF-8, zero padded */
    static final int S_ARCHIVE = 456;
    /** time of the last change below */
    static final int S_UPDATED_NS = 1024;
    /** requests offered, by class [2] */
    static final int S_ARRIVALS = 1032;
    /** requests waiting now, by class [2] */
    static final int S_QUEUED = 1048;
    /** arrival of the oldest waiting, 0 for none [2] */
    static final int S_OLDEST_ARRIVAL_NS = 1064;
    /** answered by a worker with the reply's own status [2] */
    static final int S_ANSWERED = 1080;
    /** of these, after their deadline [2] */
    static final int S_ANSWERED_LATE = 1096;
    /** answered 504 before they ran [2] */
    static final int S_EXPIRED = 1112;
    /** refused at the door: queue full, draining, bad header [2] */
    static final int S_REJECTED = 1128;
    /** answered 5xx by us: worker death, drain time-out [2] */
    static final int S_FAILED = 1144;
    /** client hung up while waiting [2] */
    static final int S_ABANDONED = 1160;
    /** requests run again after a worker died */
    static final int S_RETRIED = 1176;
    /** requests that killed two workers */
    static final int S_POISONED = 1184;
    /** sent, not answered */
    static final int S_IN_FLIGHT_REQUESTS = 1192;
    /** sent, not answered */
    static final int S_IN_FLIGHT_BATCHES = 1200;
    /** loaded workers of the current generation */
    static final int S_READY_WORKERS = 1208;
    /** of these, with a batch */
    static final int S_BUSY_WORKERS = 1216;
    /** adaptive threshold now, in 1/1000 requests */
    static final int S_THRESHOLD_MILLI = 1224;
    /** batches answered, by size bucket [16] */
    static final int S_BATCHES_BY_SIZE = 1232;
    /** sum of their service times [16] */
    static final int S_SERVICE_NS_BY_SIZE = 1360;
    /** requests in the batches answered */
    static final int S_BATCH_REQUESTS = 1488;
    /** answered in time or without a deadline, not 5xx, by class [2] */
    static final int S_GOOD = 1496;
    /** of these, with a deadline [2] */
    static final int S_SLO_MET = 1512;
    /** with a deadline, answered after it, not 5xx [2] */
    static final int S_SLO_LATE = 1528;
    /** with a deadline, refused at the door [2] */
    static final int S_SLO_REJECTED = 1544;
    /** with a deadline, answered 5xx by a worker or by us [2] */
    static final int S_SLO_FAILED = 1560;
    /** with a deadline, client hung up while waiting [2] */
    static final int S_SLO_ABANDONED = 1576;
    /** sum of the waits of what was answered, by class [2] */
    static final int S_QUEUE_NS = 1592;
    /** sum of the service times of what was answered [2] */
    static final int S_SERVICE_NS = 1608;
    /** sum of the times from arrival to answer [2] */
    static final int S_LATENCY_NS = 1624;
    /** histogram by class, then bucket [32] */
    static final int S_QUEUE_TIMES = 1640;
    /** histogram by class, then bucket [32] */
    static final int S_SERVICE_TIMES = 1896;
    /** histogram by class, then bucket [32] */
    static final int S_LATENCY_TIMES = 2152;
    /** the wanted_request taken up last, 0 for none */
    static final int S_CHANGE_REQUEST = 2432;
    /** of it: 0 none, 1 under way, 2 serves, 3 refused or undone */
    static final int S_CHANGE_STATE = 2440;
    /** loaded workers */
    static final int S_GROUP_READY = 2560;
    /** of these, with a batch */
    static final int S_GROUP_BUSY = 2568;
    /** batches answered */
    static final int S_GROUP_BATCHES = 2576;
    /** requests answered */
    static final int S_GROUP_REQUESTS = 2584;
    /** batch cap of the group's own configuration */
    static final int S_GROUP_CAP = 2592;
    /** threads per worker, 0 when not set */
    static final int S_GROUP_THREADS = 2600;
    /** fitted latency of a batch = fixed + n * per_request */
    static final int S_GROUP_FIXED_NS = 2608;
    /** see group_fixed_ns */
    static final int S_GROUP_PER_REQUEST_NS = 2616;
    /** mean absolute error of the predictions */
    static final int S_GROUP_ERROR_NS = 2624;
    /** batches that the fit has seen, 0: nothing is known */
    static final int S_GROUP_FITTED = 2632;
    /** workers that the configuration asks for */
    static final int S_GROUP_INSTANCES = 2640;
    /** seqlock: odd while commands change, 0 never written */
    static final int S_COMMAND_SEQUENCE = 3584;
    /** weight of the old threshold when it rises, 0..999999 */
    static final int S_ALPHA_MILLIONTHS = 3592;
    /** upper bound of the threshold, in 1/1000 requests */
    static final int S_THRESHOLD_CAP_MILLI = 3600;
    /** 0: adapt; else the threshold itself */
    static final int S_THRESHOLD_FIXED_MILLI = 3608;
    /** deliberate wait, at most registered_max_wait_us */
    static final int S_MAX_WAIT_US = 3616;
    /** 1: one batch may hold both classes */
    static final int S_MIX_CLASSES = 3624;
    /** one best-effort batch goes first in this time if one waits as long, 0 never */
    static final int S_AGEING_US = 3632;
    /** batches sent to a busy worker, 0 or 1 */
    static final int S_AHEAD_BATCHES = 3640;
    /** latency of a batch until the fit knows it, 0: unknown */
    static final int S_LATENCY_FIXED_NS = 3648;
    /** see latency_fixed_ns */
    static final int S_LATENCY_PER_REQUEST_NS = 3656;
    /** 0: threshold by what follows answers; else Rafiqi's quantum */
    static final int S_QUANTUM_US = 3664;
    /** 1: refuse what would be answered too late */
    static final int S_ADMISSION = 3672;
    /** how long before a deadline an answer shall be ready */
    static final int S_MARGIN_US = 3680;
    /** raised when another configuration is wanted, 0 for none */
    static final int S_WANTED_REQUEST = 3688;
    /** worker groups of that configuration */
    static final int S_WANTED_GROUPS = 3696;
    /** 1: its workers choose and keep cores of their own */
    static final int S_WANTED_PIN = 3704;
    /** batch cap, 0: the group's own */
    static final int S_COMMAND_CAP = 3712;
    /** factor of the cap for the class, in 1/1000; 0: never [2] */
    static final int S_WEIGHT_MILLI = 3720;
    /** groups with a lower number are filled first [2] */
    static final int S_PREFERENCE = 3736;
    /** of the wanted configuration, as the next two */
    static final int S_WANTED_INSTANCES = 3752;
    /** threads of each instance */
    static final int S_WANTED_THREADS = 3760;
    /** largest batch of each instance */
    static final int S_WANTED_BATCH = 3768;
}
