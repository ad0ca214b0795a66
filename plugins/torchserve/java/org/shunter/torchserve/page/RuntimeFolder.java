package org.shunter.torchserve.page;

import java.io.IOException;
import java.nio.channels.FileChannel;
import java.nio.channels.FileLock;
import java.nio.channels.OverlappingFileLockException;
import java.nio.file.DirectoryStream;
import java.nio.file.Files;
import java.nio.file.LinkOption;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.nio.file.StandardOpenOption;
import java.nio.file.attribute.PosixFilePermissions;
import java.util.Comparator;
import java.util.stream.Stream;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The private folder of this server's shared files: {@code shunter-<uid>-<pid>} under {@code
 * SHUNTER_RUNTIME_DIR}, {@code XDG_RUNTIME_DIR} or {@code /dev/shm}.
 *
 * <p>A lock file is held while the server lives. Whether a folder is dead is decided by that lock
 * and not by its pid: containers that share the parent folder have pids of their own.
 */
public final class RuntimeFolder {
    private static final Logger LOGGER = LoggerFactory.getLogger(RuntimeFolder.class);
    private static final String LOCK = "lock";
    /** Longest Unix socket path is 107 bytes; worker sockets are {@code w.<port>}. */
    private static final int LONGEST_PATH = 107 - "/w.65535".length();

    private final Path path;
    private final FileChannel lockChannel;

    private RuntimeFolder(final Path path, final FileChannel lockChannel) {
        this.path = path;
        this.lockChannel = lockChannel;
    }

    /** Sweep the folders of dead servers, then create this server's. */
    public static RuntimeFolder create(final long pid) throws IOException {
        final Path parent = parent();
        if (!Files.isDirectory(parent) || !Files.isWritable(parent)) {
            throw new IOException(
                    parent + " is not a writable folder; set SHUNTER_RUNTIME_DIR to one, best on a"
                            + " memory file system");
        }
        final String prefix = "shunter-" + uid() + "-";
        sweep(parent, prefix);
        final Path path = freeName(parent, prefix + pid);
        if (path.toString().length() > LONGEST_PATH) {
            throw new IOException(
                    path + " is too long for Unix sockets (" + path.toString().length()
                            + " characters, at most " + LONGEST_PATH
                            + "); set SHUNTER_RUNTIME_DIR to a shorter path");
        }
        Files.createDirectory(
                path,
                PosixFilePermissions.asFileAttribute(PosixFilePermissions.fromString("rwx------")));
        final Path draft = path.resolve(LOCK + ".new");
        final FileChannel channel =
                FileChannel.open(draft, StandardOpenOption.CREATE_NEW, StandardOpenOption.WRITE);
        channel.lock();
        // It appears locked: another starting server must not take the folder for a dead one's.
        Files.move(draft, path.resolve(LOCK), StandardCopyOption.ATOMIC_MOVE);
        return new RuntimeFolder(path, channel);
    }

    private static Path parent() {
        for (final String name : new String[] {"SHUNTER_RUNTIME_DIR", "XDG_RUNTIME_DIR"}) {
            final String value = System.getenv(name);
            if (value != null && !value.isEmpty()) {
                return Path.of(value).toAbsolutePath();
            }
        }
        return Path.of("/dev/shm");
    }

    /** The pid names the folder; another container may already use the same one. */
    private static Path freeName(final Path parent, final String name) {
        Path path = parent.resolve(name);
        for (int i = 2; Files.exists(path, LinkOption.NOFOLLOW_LINKS); i++) {
            path = parent.resolve(name + "-" + i);
        }
        return path;
    }

    private static Object uid() throws IOException {
        return owner(Path.of("/proc/self").toRealPath());
    }

    private static Object owner(final Path path) throws IOException {
        return Files.getAttribute(path, "unix:uid", LinkOption.NOFOLLOW_LINKS);
    }

    private static void sweep(final Path parent, final String prefix) throws IOException {
        try (DirectoryStream<Path> folders = Files.newDirectoryStream(parent, prefix + "*")) {
            for (final Path folder : folders) {
                final boolean ours =
                        Files.isDirectory(folder, LinkOption.NOFOLLOW_LINKS)
                                && uid().equals(owner(folder));
                if (ours && isDead(folder)) {
                    LOGGER.info("Removing {} of a server that is gone", folder);
                    delete(folder);
                }
            }
        }
    }

    private static boolean isDead(final Path folder) {
        try (FileChannel channel =
                FileChannel.open(folder.resolve(LOCK), StandardOpenOption.WRITE)) {
            final FileLock lock = channel.tryLock();
            return lock != null;
        } catch (NoSuchFileException e) {
            // Either another server is creating its folder at this moment, or one died doing so.
            return isOld(folder);
        } catch (IOException | OverlappingFileLockException e) {
            return false;
        }
    }

    private static boolean isOld(final Path folder) {
        try {
            final long created = Files.getLastModifiedTime(folder).toMillis();
            return System.currentTimeMillis() - created > 60_000;
        } catch (IOException e) {
            return false;
        }
    }

    /** Where the folder is. */
    public Path path() {
        return path;
    }

    /** Path of the Unix socket of the worker with that number. */
    public String socket(final int port) {
        return path.resolve("w." + port).toString();
    }

    /** Remove the folder; the server is ending. */
    public void remove() {
        delete(path);
        try {
            lockChannel.close();
        } catch (IOException e) {
            LOGGER.debug("Lock of {} was not closed", path, e);
        }
    }

    private static void delete(final Path folder) {
        try (Stream<Path> files = Files.walk(folder)) {
            files.sorted(Comparator.reverseOrder()).forEach(RuntimeFolder::deleteOne);
        } catch (IOException e) {
            LOGGER.warn("{} was not removed: {}", folder, e.toString());
        }
    }

    private static void deleteOne(final Path file) {
        try {
            Files.deleteIfExists(file);
        } catch (IOException e) {
            LOGGER.warn("{} was not removed: {}", file, e.toString());
        }
    }
}
