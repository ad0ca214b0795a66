package org.shunter.torchserve.server;

import java.lang.reflect.InvocationHandler;
import java.lang.reflect.Proxy;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.function.BooleanSupplier;
import org.shunter.torchserve.pool.ServedModel;
import org.shunter.torchserve.worker.Worker;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Lets SIGTERM and SIGINT answer what was taken before TorchServe's own shutdown hook closes the
 * connections. Shutdown hooks run at the same time, so one of ours would be too late.
 *
 * <p>{@code sun.misc.Signal} is in the supported module jdk.unsupported; it is reached by
 * reflection because javac warns of it in a way that no annotation silences.
 */
public final class Drain {
    static final String REASON = "The server is shutting down";
    private static final Logger LOGGER = LoggerFactory.getLogger(Drain.class);
    private static final long TIMEOUT_MS = 25_000;
    /** Answers were handed to the connections' threads; let them be written. */
    private static final long FLUSH_MS = 100;

    private Drain() {}

    /** Drain on these signals, then exit as the JVM would have. */
    public static void install(final ShunterWorkLoadManager manager) {
        handle("TERM", 143, manager);
        handle("INT", 130, manager);
    }

    private static void handle(
            final String name, final int status, final ShunterWorkLoadManager manager) {
        final AtomicBoolean begun = new AtomicBoolean();
        final InvocationHandler onSignal =
                (proxy, method, arguments) -> {
                    if (method.getName().equals("handle") && begun.compareAndSet(false, true)) {
                        new Thread(() -> run(manager, status), "shunter-drain").start();
                    }
                    return method.getName().equals("hashCode") ? (Object) name.hashCode() : null;
                };
        try {
            final Class<?> signal = Class.forName("sun.misc.Signal");
            final Class<?> handler = Class.forName("sun.misc.SignalHandler");
            signal.getMethod("handle", signal, handler)
                    .invoke(
                            null,
                            signal.getConstructor(String.class).newInstance(name),
                            Proxy.newProxyInstance(
                                    Drain.class.getClassLoader(), new Class<?>[] {handler}, onSignal));
        } catch (ReflectiveOperationException | IllegalArgumentException e) {
            LOGGER.warn("Requests will not be drained on SIG{}: {}", name, e.toString());
        }
    }

    private static void run(final ShunterWorkLoadManager manager, final int status) {
        try {
            LOGGER.info("Draining: requests that were taken are answered, new ones are refused");
            drain(manager);
            Thread.sleep(FLUSH_MS);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        } finally {
            System.exit(status);
        }
    }

    /** Refuse new requests everywhere and wait until nothing waits and nothing runs. */
    private static void drain(final ShunterWorkLoadManager manager) throws InterruptedException {
        manager.beginDrain();
        final long endNs = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(TIMEOUT_MS);
        await(
                endNs,
                () ->
                        !manager.frontEnd().isAlive()
                                && manager.all().stream().allMatch(m -> m.dispatcher().isIdle()));
        final List<Worker> fed = new ArrayList<>();
        manager.all().forEach(model -> fed.addAll(model.pool().network().workers()));
        manager.all().forEach(Drain::end);
        // A network front end that is not ours may still wait for what they do.
        await(endNs, () -> fed.stream().noneMatch(Worker::isAlive));
    }

    /** End every worker at once and answer what they held and what waits with an error. */
    private static void end(final ServedModel model) {
        model.dispatcher().setWorkers(List.of());
        model.pool().workers().forEach(Worker::end);
        model.dispatcher().failWaiting(503, REASON);
    }

    private static void await(final long endNs, final BooleanSupplier condition)
            throws InterruptedException {
        while (System.nanoTime() - endNs < 0 && !condition.getAsBoolean()) {
            Thread.sleep(2);
        }
    }
}
