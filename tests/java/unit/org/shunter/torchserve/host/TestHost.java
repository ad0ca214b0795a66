package org.shunter.torchserve.host;

import io.netty.channel.EventLoopGroup;
import io.netty.channel.nio.NioEventLoopGroup;
import java.io.IOException;
import java.lang.reflect.Field;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.attribute.PosixFilePermissions;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.AbstractExecutorService;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.ThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.commons.io.FileUtils;
import org.pytorch.serve.archive.model.Manifest;
import org.pytorch.serve.archive.model.ModelArchive;
import org.pytorch.serve.metrics.MetricCache;
import org.pytorch.serve.util.ConfigManager;
import org.pytorch.serve.wlm.Model;
import org.pytorch.serve.wlm.ModelManager;

/**
 * A host whose Python is a script of the test, and that has no thread to give whenever the test
 * says so: as when the system allows no more.
 */
public final class TestHost implements AutoCloseable {
    /** So long a test waits for what must happen. */
    public static final long LONGEST_S = 60;

    public final Host host;
    private static Path common;

    private int accepted;
    private int refused;
    private List<Runnable> held;

    private final Path folder;
    private final EventLoopGroup netty = new NioEventLoopGroup(1);
    private final ExecutorService threads =
            Executors.newCachedThreadPool(
                    task -> {
                        final Thread thread = new Thread(task, "test-pool");
                        thread.setDaemon(true);
                        return thread;
                    });

    /** {@code program}: the lines of its Python, whose arguments say what is asked of it. */
    public TestHost(final String... program) throws IOException, ReflectiveOperationException {
        final Path python = common().resolve("python");
        folder = Files.createTempDirectory(common(), "test");
        Files.writeString(python, "#!/bin/sh\n" + String.join("\n", program) + "\n");
        Files.setPosixFilePermissions(python, PosixFilePermissions.fromString("rwx------"));
        host = new Host(ConfigManager.getInstance(), netty, null);
        host.countWith(new AtomicInteger(9000), new AtomicInteger());
        set(host, "pool", new Refusing());
    }

    /** One for all tests of a JVM: TorchServe remembers in several places what it reads first. */
    public static synchronized Path common() throws IOException, ReflectiveOperationException {
        if (common != null) {
            return common;
        }
        final Path created = Files.createTempDirectory("shunter-host");
        Runtime.getRuntime()
                .addShutdownHook(new Thread(() -> FileUtils.deleteQuietly(created.toFile())));
        Files.createDirectory(created.resolve("ts"));
        Files.writeString(created.resolve("ts/version.txt"), "0.12.0\n");
        final Path properties = created.resolve("config.properties");
        final Path metrics = created.resolve("metrics.yaml");
        Files.writeString(metrics, "dimensions: []\nts_metrics: {}\nmodel_metrics: {}\n");
        Files.writeString(properties, "metrics_config=" + metrics + "\n");
        System.setProperty("model_server_home", created.toString());
        final ConfigManager.Arguments arguments = new ConfigManager.Arguments();
        arguments.setTsConfigFile(properties.toString());
        arguments.setModelStore(created.toString());
        set(arguments, "pythonExecutable", created.resolve("python").toString());
        ConfigManager.init(arguments);
        ConfigManager.getInstance().validateConfigurations();
        MetricCache.init();
        ModelManager.init(ConfigManager.getInstance(), null);
        common = created;
        return common;
    }

    private static void set(final Object object, final String name, final Object value)
            throws ReflectiveOperationException {
        final Field field = object.getClass().getDeclaredField(name);
        field.setAccessible(true);
        field.set(object, value);
    }

    /** A folder of the test's own. */
    public Path folder() {
        return folder;
    }

    /** A model that needs no archive. */
    public Model model() {
        final Manifest manifest = new Manifest();
        final Manifest.Model described = new Manifest.Model();
        described.setModelName("m");
        described.setModelVersion("1.0");
        described.setHandler("handler");
        manifest.setModel(described);
        manifest.setRuntime(Manifest.RuntimeType.PYTHON);
        return new Model(new ModelArchive(manifest, "m.mar", folder.toFile(), false), 100);
    }

    /** After the next {@code before} tasks, so many find no thread. */
    public synchronized void refuse(final int before, final int times) {
        accepted = before;
        refused = times;
    }

    /** Tasks wait until they are let go. */
    public synchronized void hold() {
        held = new ArrayList<>();
    }

    /** Those that were held run, and the others too. */
    public synchronized void letGo() {
        held.forEach(threads::execute);
        held = null;
    }

    private synchronized void execute(final Runnable task) {
        if (accepted-- <= 0 && refused-- > 0) {
            throw new OutOfMemoryError("unable to create native thread: told to fail");
        }
        if (held == null) {
            threads.execute(task);
        } else {
            held.add(task);
        }
    }

    private final class Refusing extends AbstractExecutorService {
        @Override
        public void execute(final Runnable task) {
            TestHost.this.execute(task);
        }

        @Override
        public void shutdown() {
            threads.shutdown();
        }

        @Override
        public List<Runnable> shutdownNow() {
            return threads.shutdownNow();
        }

        @Override
        public boolean isShutdown() {
            return threads.isShutdown();
        }

        @Override
        public boolean isTerminated() {
            return threads.isTerminated();
        }

        @Override
        public boolean awaitTermination(final long time, final TimeUnit unit)
                throws InterruptedException {
            return threads.awaitTermination(time, unit);
        }
    }

    @Override
    public void close() {
        host.killWorkers();
        ((ScheduledThreadPoolExecutor) host.timer()) // a worker that was killed is not tried again
                .setRejectedExecutionHandler(new ThreadPoolExecutor.DiscardPolicy());
        host.timer().shutdownNow();
        threads.shutdownNow();
        netty.shutdownGracefully(0, 0, TimeUnit.SECONDS);
        host.runtime().remove();
    }
}
