package org.shunter.torchserve.host;

import io.netty.channel.Channel;
import io.netty.channel.unix.DomainSocketAddress;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.net.SocketAddress;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import org.pytorch.serve.util.Connector;
import org.shunter.torchserve.page.RuntimeFolder;

/**
 * Where a worker listens: a Unix socket in the runtime folder, or a TCP port on loopback when
 * native I/O is off.
 *
 * @param port number of the worker, unique in this server
 * @param path the socket's path, or null for TCP
 */
public record WorkerAddress(int port, String path) {
    /** The address of a worker number on this server. */
    static WorkerAddress of(final RuntimeFolder runtime, final int port) {
        return new WorkerAddress(port, new Connector(port).isUds() ? runtime.socket(port) : null);
    }

    public List<String> arguments() {
        return path == null
                ? List.of("--sock-type", "tcp", "--port", String.valueOf(port))
                : List.of("--sock-type", "unix", "--sock-name", path);
    }

    public SocketAddress socketAddress() {
        return path == null
                ? new InetSocketAddress("127.0.0.1", port)
                : new DomainSocketAddress(path);
    }

    public Class<? extends Channel> channelClass() {
        return new Connector(port).getClientChannel();
    }

    /** Remove what a dead worker left. */
    public void clean() throws IOException {
        if (path != null) {
            Files.deleteIfExists(Path.of(path));
        }
    }
}
