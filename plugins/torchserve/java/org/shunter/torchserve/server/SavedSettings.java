package org.shunter.torchserve.server;

import com.google.gson.Gson;
import com.google.gson.GsonBuilder;
import com.google.gson.JsonSyntaxException;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.DirectoryStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.pytorch.serve.http.BadRequestException;
import org.pytorch.serve.snapshot.FSSnapshotSerializer;
import org.pytorch.serve.wlm.Model;
import org.shunter.torchserve.pool.ServedModel;
import org.shunter.torchserve.settings.GroupConfig;
import org.shunter.torchserve.settings.ModelSettings;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * What a snapshot of TorchServe has no room for. It is kept in a folder of its own beside the
 * snapshots: stock takes the newest file among them as the last snapshot, and skips folders. The
 * folder is hidden, so that scripts that remove {@code logs/config/*} meet files only.
 */
public final class SavedSettings {
    private static final Logger LOGGER = LoggerFactory.getLogger(SavedSettings.class);
    private static final String FOLDER = ".shunter";
    /** Where earlier versions kept it; still read. */
    private static final String OLD_FOLDER = "shunter";
    private static final String SUFFIX = ".json";
    private static final int VERSION = 1;
    private static final Duration KEPT_FOR = Duration.ofDays(30);
    private static final Gson GSON = new GsonBuilder().setPrettyPrinting().create();

    /** Settings of one model version. */
    record OfModel(String configuration, List<String> cores, boolean auto) {
        /** The worker groups; an unreadable text falls back to the archive's own. */
        List<GroupConfig> groups(final ModelSettings settings) {
            try {
                final List<GroupConfig> groups =
                        GroupConfig.placedLike(
                                GroupConfig.parse("saved", configuration), settings.configuration());
                for (int i = 0; cores != null && i < Math.min(cores.size(), groups.size()); i++) {
                    final String saved = cores.get(i);
                    if (saved != null) {
                        GroupConfig.checkCores("saved", saved);
                        groups.set(i, groups.get(i).withCores(saved));
                    }
                }
                return groups;
            } catch (BadRequestException e) {
                LOGGER.warn("{}", e.getMessage());
                return settings.configuration();
            }
        }
    }

    /** Gson 2.8 does not know records. */
    private static final class Row {
        String configuration;
        List<String> cores;
        boolean auto;
    }

    /** Files of earlier versions say no version; their rows are the same. */
    private static final class Content {
        int version;
        Map<String, Row> models = new TreeMap<>();
    }

    private Content restored = new Content();
    /** What this server was started from, which may lie elsewhere than other snapshots. */
    private volatile String loaded = "";

    /** Settings that the restored snapshot had for a model, or null. */
    OfModel of(final Model model) {
        return of(model.getModelName() + "/" + model.getVersion());
    }

    OfModel of(final String name) {
        final Row row = restored.models.get(name);
        return row == null || row.configuration == null
                ? null
                : new OfModel(row.configuration, row.cores, row.auto);
    }

    private static Path file(final String folder, final String snapshotName) {
        return Path.of(FSSnapshotSerializer.getSnapshotDirectory(), folder, snapshotName + SUFFIX);
    }

    /** Write what goes with a snapshot that was just written. */
    public void save(final String snapshotName, final Collection<ServedModel> models) throws IOException {
        final Content content = new Content();
        content.version = VERSION;
        for (final ServedModel model : models) {
            final Row row = new Row();
            final List<GroupConfig> registered = model.pool().registered();
            row.configuration = GroupConfig.text(registered);
            row.cores = new ArrayList<>();
            registered.forEach(group -> row.cores.add(group.cores()));
            row.auto = model.pool().auto();
            content.models.put(model.name(), row);
        }
        final Path file = file(FOLDER, snapshotName);
        Files.createDirectories(file.getParent());
        Files.write(file, GSON.toJson(content).getBytes(StandardCharsets.UTF_8));
        forgetRemoved(file.getParent());
    }

    /**
     * There is a snapshot for each change; who removes old ones need not know of these. Who has
     * copied one to another place has time to start from it there.
     */
    private void forgetRemoved(final Path folder) throws IOException {
        try (DirectoryStream<Path> files = Files.newDirectoryStream(folder, "*" + SUFFIX)) {
            for (final Path each : files) {
                final String name = each.getFileName().toString();
                final String snapshot = name.substring(0, name.length() - SUFFIX.length());
                final boolean isOld =
                        Files.getLastModifiedTime(each)
                                .toInstant()
                                .isBefore(Instant.now().minus(KEPT_FOR));
                if (isOld
                        && !snapshot.equals(loaded)
                        && !Files.exists(folder.resolveSibling(snapshot))) {
                    Files.deleteIfExists(each);
                }
            }
        }
    }

    /** Read what was saved with the snapshot that is being restored. */
    public void load(final String snapshotName) {
        loaded = snapshotName;
        final Path newer = file(FOLDER, snapshotName);
        final Path file = Files.exists(newer) ? newer : file(OLD_FOLDER, snapshotName);
        if (!Files.exists(file)) {
            return;
        }
        try {
            restore(new String(Files.readAllBytes(file), StandardCharsets.UTF_8));
        } catch (IOException | JsonSyntaxException e) {
            LOGGER.warn("{} is not readable, models start with their own settings: {}", file, e);
        }
    }

    /** Use what a file says, unless it is of a version that this one cannot know. */
    boolean restore(final String text) {
        final Content content = GSON.fromJson(text, Content.class);
        if (content != null && content.version > VERSION) {
            LOGGER.warn(
                    "The settings beside the snapshot are of version {} of their format, this Shunter"
                            + " knows {}: models start with their own settings",
                    content.version,
                    VERSION);
            return false;
        }
        if (content == null || content.models == null) {
            return false;
        }
        restored = content;
        return true;
    }
}
