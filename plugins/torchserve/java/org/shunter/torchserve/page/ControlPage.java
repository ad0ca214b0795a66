package org.shunter.torchserve.page;

import static java.nio.file.StandardOpenOption.CREATE_NEW;
import static java.nio.file.StandardOpenOption.READ;
import static java.nio.file.StandardOpenOption.WRITE;
import static org.shunter.torchserve.page.ControlLayout.*;

import java.io.IOException;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.FileChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.nio.file.attribute.PosixFilePermissions;
import java.util.ArrayDeque;
import java.util.Set;

/**
 * The shared memory through which the server and the controller talk; see {@code
 * batching/page/layout.py} for every byte. This class creates it and hands out its slots.
 */
public final class ControlPage {
    /** File name inside the runtime folder. */
    public static final String FILE = "control";

    static final VarHandle WORD =
            MethodHandles.byteBufferViewVarHandle(long[].class, ByteOrder.LITTLE_ENDIAN);

    private final ByteBuffer bytes;
    private final ArrayDeque<Integer> freeSlots = new ArrayDeque<>();

    public ControlPage(final ByteBuffer bytes) {
        this.bytes = bytes;
        for (int i = 0; i < SLOT_COUNT; i++) {
            freeSlots.addLast(i);
        }
    }

    /** Create the page: written whole under another name, published by a rename. */
    public static ControlPage create(final Path folder, final long ownerPid) throws IOException {
        checkProcessor();
        final long usable = Files.getFileStore(folder).getUsableSpace();
        if (usable < PAGE_SIZE) {
            throw new IOException(
                    folder + " has " + usable + " bytes left, the control page needs " + PAGE_SIZE);
        }
        final Path draft = folder.resolve(FILE + ".new");
        final ControlPage page;
        try (FileChannel channel =
                (FileChannel)
                        Files.newByteChannel(
                                draft,
                                Set.of(CREATE_NEW, READ, WRITE),
                                PosixFilePermissions.asFileAttribute(
                                        PosixFilePermissions.fromString("rw-------")))) {
            // Real zeros, so that a full file system is an error here and not a SIGBUS later.
            final ByteBuffer zeros = ByteBuffer.allocate(PAGE_SIZE);
            while (zeros.hasRemaining()) {
                channel.write(zeros);
            }
            page = new ControlPage(channel.map(FileChannel.MapMode.READ_WRITE, 0, PAGE_SIZE));
        }
        page.writeHeader(ownerPid);
        page.signalReady();
        Files.move(draft, folder.resolve(FILE), StandardCopyOption.ATOMIC_MOVE);
        return page;
    }

    /** The Python processes publish by the order of stores alone, which others do not keep. */
    private static void checkProcessor() throws IOException {
        final String machine = System.getProperty("os.arch");
        if (!"amd64".equals(machine)) {
            throw new IOException(
                    "Shunter needs an x86_64 processor, this one is " + machine + ": the shared page"
                            + " relies on stores that become visible in program order."
                            + " Set SHUNTER=off to serve without the plugin");
        }
    }

    private void writeHeader(final long ownerPid) {
        set(H_MAGIC, MAGIC);
        set(H_LAYOUT_VERSION, LAYOUT_VERSION);
        set(H_PAGE_SIZE, PAGE_SIZE);
        set(H_HEADER_SIZE, HEADER_SIZE);
        set(H_SLOT_SIZE, SLOT_SIZE);
        set(H_SLOT_COUNT, SLOT_COUNT);
        set(H_OWNER_PID, ownerPid);
        set(H_CREATED_UNIX_NS, System.currentTimeMillis() * 1_000_000L);
        heartbeat(System.nanoTime());
        set(HEADER_SIZE + K_HOLDER_HEARTBEAT_NS, System.nanoTime());
        set(HEADER_SIZE + K_HOLDER_PID, ownerPid);
    }

    private void signalReady() {
        set(H_READY, 1);
    }

    /** Tell readers that the server lives. */
    public void heartbeat(final long nowNs) {
        set(H_SERVER_HEARTBEAT_NS, nowNs);
    }

    /** A word of the header, of a holder or of a runner. */
    public long get(final int offset) {
        return (long) WORD.getAcquire(bytes, offset);
    }

    /** A zero-padded UTF-8 text of the header. */
    public String text(final int offset, final int width) {
        final byte[] content = new byte[width];
        int length = 0;
        while (length < width && (content[length] = bytes.get(offset + length)) != 0) {
            length++;
        }
        return new String(content, 0, length, StandardCharsets.UTF_8);
    }

    /** Write a word that only this process writes. */
    public void set(final int offset, final long value) {
        WORD.setRelease(bytes, offset, value);
    }

    /** A free slot, or one in private memory when all are taken: that model runs unobserved. */
    public synchronized ModelSlot claim() {
        final Integer index = freeSlots.pollFirst();
        if (index == null) {
            return new ModelSlot(ByteBuffer.allocateDirect(SLOT_SIZE), -1);
        }
        final ByteBuffer view = bytes.duplicate();
        view.position(SLOTS_OFFSET + index * SLOT_SIZE).limit(SLOTS_OFFSET + (index + 1) * SLOT_SIZE);
        final ModelSlot slot = new ModelSlot(view.slice(), index);
        slot.clear(); // before it is live: the controller may have written to it meanwhile
        return slot;
    }

    /** Give a slot back; its words are cleared. */
    public synchronized void release(final ModelSlot slot) {
        final int index = slot.index();
        slot.leave();
        if (index >= 0) {
            freeSlots.addLast(index);
        }
    }
}
