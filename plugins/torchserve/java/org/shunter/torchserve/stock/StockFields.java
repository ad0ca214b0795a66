package org.shunter.torchserve.stock;

import io.grpc.stub.ServerCallStreamObserver;
import io.netty.channel.ChannelHandlerContext;
import java.lang.reflect.Field;
import java.util.concurrent.ConcurrentMap;
import java.util.concurrent.LinkedBlockingDeque;
import java.util.concurrent.atomic.AtomicInteger;
import org.pytorch.serve.job.GRPCJob;
import org.pytorch.serve.job.Job;
import org.pytorch.serve.job.RestJob;
import org.pytorch.serve.snapshot.SnapshotSerializerFactory;
import org.pytorch.serve.wlm.Model;
import org.pytorch.serve.wlm.ModelManager;
import org.pytorch.serve.wlm.WorkLoadManager;

/**
 * Every private field of TorchServe 0.12 that this plugin touches, in one place. They are looked up
 * when the plugin installs itself, so that a server whose fields differ does not start.
 */
public final class StockFields {
    private static final Field WLM = field(ModelManager.class, "wlm");
    private static final Field BACKEND_GROUP = field(WorkLoadManager.class, "backendGroup");
    private static final Field PORT = field(WorkLoadManager.class, "port");
    private static final Field GPU_COUNTER = field(WorkLoadManager.class, "gpuCounter");
    private static final Field SERIALIZER =
            field(SnapshotSerializerFactory.class, "snapshotSerializer");
    private static final Field JOBS = field(Model.class, "jobsDb");
    private static final Field REST_CONTEXT = field(RestJob.class, "ctx");
    private static final Field[] OBSERVERS = {
        field(GRPCJob.class, "predictionResponseObserver"),
        field(GRPCJob.class, "modelInferResponseObserver"),
        field(GRPCJob.class, "managementResponseObserver")
    };

    /** gRPC tells nobody which handler a call has. */
    private static final Field CANCEL_HANDLER =
            field(grpcClass("ServerCalls$ServerCallStreamObserverImpl"), "onCancelHandler");

    private StockFields() {}

    private static Class<?> grpcClass(final String name) {
        try {
            return Class.forName(ServerCallStreamObserver.class.getPackageName() + "." + name);
        } catch (ClassNotFoundException e) {
            throw new IllegalStateException(
                    "gRPC has no class " + name + ": this is not the TorchServe that Shunter was"
                            + " built for",
                    e);
        }
    }

    static Field field(final Class<?> owner, final String name) {
        try {
            final Field field = owner.getDeclaredField(name);
            field.setAccessible(true);
            return field;
        } catch (NoSuchFieldException e) {
            throw new IllegalStateException(
                    owner.getName()
                            + " has no field "
                            + name
                            + ": this is not the TorchServe that Shunter was built for",
                    e);
        }
    }

    static Object get(final Field field, final Object owner) {
        try {
            return field.get(owner);
        } catch (IllegalAccessException e) {
            throw new IllegalStateException(field + " cannot be read", e);
        }
    }

    private static void set(final Field field, final Object owner, final Object value) {
        try {
            field.set(owner, value);
        } catch (IllegalAccessException e) {
            throw new IllegalStateException(field + " cannot be written", e);
        }
    }

    public static WorkLoadManager workLoadManager(final ModelManager manager) {
        return (WorkLoadManager) get(WLM, manager);
    }

    public static void setWorkLoadManager(final ModelManager manager, final WorkLoadManager value) {
        set(WLM, manager, value);
    }

    public static Object backendGroup(final WorkLoadManager manager) {
        return get(BACKEND_GROUP, manager);
    }

    /** The counter that numbers worker sockets, shared with the stock workers. */
    public static AtomicInteger port(final WorkLoadManager manager) {
        return (AtomicInteger) get(PORT, manager);
    }

    /** The counter that assigns GPUs, shared with the stock workers. */
    public static AtomicInteger gpuCounter(final WorkLoadManager manager) {
        return (AtomicInteger) get(GPU_COUNTER, manager);
    }

    /** Let the factory construct the serializer again, once there is a model manager. */
    public static void forgetSerializer() {
        set(SERIALIZER, null, null);
    }

    /** The queue where a model's inference requests arrive. */
    public static LinkedBlockingDeque<Job> dataQueue(final Model model) {
        return jobs(model).get(Model.DEFAULT_DATA_QUEUE);
    }

    /** Put a queue of ours where a model's inference requests arrive. */
    public static void setDataQueue(final Model model, final LinkedBlockingDeque<Job> queue) {
        jobs(model).put(Model.DEFAULT_DATA_QUEUE, queue);
    }

    @SuppressWarnings("unchecked")
    private static ConcurrentMap<String, LinkedBlockingDeque<Job>> jobs(final Model model) {
        return (ConcurrentMap<String, LinkedBlockingDeque<Job>>) get(JOBS, model);
    }

    /** The HTTP connection a request came from; null for one that did not come from a client. */
    public static ChannelHandlerContext context(final RestJob job) {
        return (ChannelHandlerContext) get(REST_CONTEXT, job);
    }

    /** The gRPC call a request came from, or null. */
    public static ServerCallStreamObserver<?> call(final GRPCJob job) {
        for (final Field observer : OBSERVERS) {
            if (get(observer, job) instanceof ServerCallStreamObserver<?> call) {
                return call;
            }
        }
        return null;
    }

    /** What TorchServe does when a call is cancelled, or null. */
    public static Runnable cancelHandler(final ServerCallStreamObserver<?> call) {
        return CANCEL_HANDLER.getDeclaringClass().isInstance(call)
                ? (Runnable) get(CANCEL_HANDLER, call)
                : null;
    }
}
