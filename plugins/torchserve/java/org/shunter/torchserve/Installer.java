package org.shunter.torchserve;

import static org.shunter.torchserve.page.ControlLayout.H_CONTROLLER_HEARTBEAT_NS;

import java.io.IOException;
import java.io.InputStream;
import java.util.List;
import java.util.Optional;
import java.util.Properties;
import java.util.ServiceLoader;
import org.pytorch.serve.servingsdk.snapshot.SnapshotSerializer;
import org.pytorch.serve.util.ConfigManager;
import org.pytorch.serve.wlm.ModelManager;
import org.pytorch.serve.wlm.WorkLoadManager;
import org.shunter.torchserve.host.Host;
import org.shunter.torchserve.host.Supervisor;
import org.shunter.torchserve.page.ControlPage;
import org.shunter.torchserve.requests.AccessLog;
import org.shunter.torchserve.server.Drain;
import org.shunter.torchserve.server.ManagementCalls;
import org.shunter.torchserve.server.RestConnections;
import org.shunter.torchserve.server.SavedSettings;
import org.shunter.torchserve.server.ShunterWorkLoadManager;
import org.shunter.torchserve.stock.StockFields;
import org.shunter.torchserve.view.FrontEndMetrics;
import org.shunter.torchserve.view.PoolMetrics;
import org.shunter.torchserve.view.PreemptionMetrics;
import org.shunter.torchserve.view.ShunterMetrics;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Puts this plugin into a starting TorchServe, or ends the start with advice. A server that was
 * asked for the plugin never runs without it in silence.
 */
final class Installer {
    private static final Logger LOGGER = LoggerFactory.getLogger(Installer.class);
    private static ShunterWorkLoadManager installed;
    private static Supervisor controller;
    private static final SavedSettings SAVED = new SavedSettings();

    private Installer() {}

    /** {@code SHUNTER=off} turns the jar into a no-op. */
    static boolean isOff() {
        return "off".equalsIgnoreCase(System.getenv("SHUNTER"));
    }

    static SavedSettings saved() {
        return SAVED;
    }

    /** The running plugin, or null before it is installed or when it is off. */
    static ShunterWorkLoadManager manager() {
        return installed;
    }

    static Supervisor controller() {
        return controller;
    }

    /** Build properties of this jar: its version and the TorchServe it was built against. */
    static Properties properties() {
        final Properties properties = new Properties();
        try (InputStream in = Installer.class.getResourceAsStream("/shunter.properties")) {
            if (in != null) {
                properties.load(in);
            }
        } catch (IOException e) {
            LOGGER.warn("shunter.properties is not readable: {}", e.toString());
        }
        return properties;
    }

    /** Another snapshot plugin before ours on the class path would keep ours from starting. */
    static void checkFirstSerializer() {
        if (isOff()) {
            return;
        }
        final Optional<ServiceLoader.Provider<SnapshotSerializer>> first =
                ServiceLoader.load(SnapshotSerializer.class).stream().findFirst();
        if (first.isPresent() && first.get().type() != ShunterSnapshotSerializer.class) {
            throw new IllegalStateException(
                    "Shunter cannot install itself: TorchServe takes one snapshot plugin only, and "
                            + first.get().type().getName()
                            + " comes first on the class path. Remove one of the two jars from"
                            + " --plugins-path.");
        }
    }

    /** Install, once; the model manager must exist. */
    static synchronized void install() {
        if (isOff() || installed != null) {
            return;
        }
        final ConfigManager config = ConfigManager.getInstance();
        final ModelManager models = ModelManager.getInstance();
        if (config == null || models == null) {
            throw new IllegalStateException(
                    "Shunter was constructed before TorchServe's model manager. Start TorchServe with"
                            + " --ts-config FILE or --ncs.");
        }
        checkVersion(config.getVersion());
        try {
            final WorkLoadManager stock = StockFields.workLoadManager(models);
            final AccessLog log = AccessLog.of(System.getenv(AccessLog.VARIABLE));
            final Host host =
                    new Host(
                            config,
                            ShunterWorkLoadManager.backendGroup(stock),
                            log == null ? null : log::ended);
            final ShunterWorkLoadManager manager = new ShunterWorkLoadManager(host, SAVED);
            StockFields.setWorkLoadManager(models, manager);
            if (StockFields.workLoadManager(models) != manager) {
                throw new IllegalStateException("TorchServe's work load manager was not replaced");
            }
            installed = manager;
            controller =
                    new Supervisor(
                            host,
                            "controller",
                            controllerArguments(host),
                            "its last numbers stay in force",
                            () -> host.page().get(H_CONTROLLER_HEARTBEAT_NS));
            controller.start();
            new ShunterMetrics(manager).register();
            new FrontEndMetrics(manager).register();
            new PreemptionMetrics(manager).register();
            new PoolMetrics(manager).register();
            Drain.install(manager);
            ManagementCalls.install(host);
            RestConnections.install(host);
            Runtime.getRuntime().addShutdownHook(new Thread(() -> shutdown(manager), "shunter-exit"));
            LOGGER.info("Shunter {} installed, runtime folder {}", version(), host.runtime().path());
        } catch (IOException e) {
            throw new IllegalStateException("Shunter cannot start: " + e.getMessage(), e);
        }
    }

    private static List<String> controllerArguments(final Host host) {
        final String page = host.runtime().path().resolve(ControlPage.FILE).toString();
        return host.withSettings(
                List.of(
                        "-m", "shunter.plugins.control.controller",
                        "--page", page,
                        "--directory", System.getProperty("user.dir")));
    }

    private static void shutdown(final ShunterWorkLoadManager manager) {
        manager.host().hold().release();
        controller.stop();
        manager.frontEnd().kill();
        manager.host().killWorkers();
        manager.host().runtime().remove();
    }

    static String version() {
        return properties().getProperty("shunter.version", "unknown");
    }

    private static void checkVersion(final String running) {
        final String builtFor = properties().getProperty("torchserve.version", running);
        if (!builtFor.equals(running)) {
            throw new IllegalStateException(
                    "Shunter's jar was built against TorchServe " + builtFor + ", this is " + running
                            + ". Build it again for this one with: shunter jar --force");
        }
    }
}
