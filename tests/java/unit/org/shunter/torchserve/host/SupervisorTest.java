package org.shunter.torchserve.host;

import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Test;

/** A program that is kept running. */
final class SupervisorTest {
    @Test
    void itStartsAgainAfterThereWasNoThreadToStartItWith() throws Exception {
        try (TestHost test = new TestHost("[ \"$2\" = -c ] || echo . >> \"$2\"")) {
            final Path starts = test.folder().resolve("starts");
            test.refuse(0, 1);
            final Supervisor supervisor =
                    new Supervisor(
                            test.host, "program", List.of(starts.toString()), "nothing holds", () -> 0);
            supervisor.start();
            final long endNs = System.nanoTime() + TimeUnit.SECONDS.toNanos(TestHost.LONGEST_S);
            while (!Files.exists(starts) || Files.readAllLines(starts).size() < 2) {
                assertTrue(System.nanoTime() - endNs < 0, "it is never started again");
                Thread.sleep(5);
            }
            supervisor.stop();
        }
    }
}
