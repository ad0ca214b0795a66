package org.shunter.torchserve.server;

import static org.shunter.torchserve.page.ControlLayout.*;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.LinkOption;
import java.nio.file.Path;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import org.pytorch.serve.util.ConfigManager;
import org.pytorch.serve.util.messages.InputParameter;
import org.pytorch.serve.util.messages.RequestInput;
import org.shunter.torchserve.forming.RequestClass;
import org.shunter.torchserve.forming.RequestTerms;
import org.shunter.torchserve.host.Host;
import org.shunter.torchserve.page.ControlPage;
import org.shunter.torchserve.page.ModelSlot;
import org.shunter.torchserve.pool.ServedModel;
import org.shunter.torchserve.queue.Refusal;

/**
 * Whether a request may say that it is strict, as the operator has set it and the controller has
 * written it to the control page. What a model is by default is not judged.
 */
final class StrictClaims {
    private static final String KEY = RequestTerms.STRICT_KEY;
    private static final int DIGEST_WORDS = 4;

    private final ControlPage page;
    private final ModelSlot slot;
    private final String name;
    private final boolean mayForbid;

    /** {@code mayForbid}: until the settings were read, nobody may claim anything. */
    private StrictClaims(
            final ControlPage page,
            final ModelSlot slot,
            final String name,
            final boolean mayForbid) {
        this.page = page;
        this.slot = slot;
        this.name = name;
        this.mayForbid = mayForbid;
    }

    static StrictClaims of(final Host host, final ServedModel served) {
        return new StrictClaims(
                host.page(),
                served.slot(),
                served.model().getModelName(),
                mayForbid(host.config()));
    }

    /**
     * Whether the settings, which {@code plugins/control/settings.py} finds and reads, may forbid anything.
     * They are not parsed here: that they mention it is enough, and so is that nobody can tell.
     */
    private static boolean mayForbid(final ConfigManager config) {
        final String variable = System.getenv("SHUNTER_CONFIG");
        String named = config.getProperty("shunter_config", "");
        named = named.isEmpty() && variable != null ? variable : named;
        final Path path =
                Path.of(System.getProperty("user.dir"))
                        .resolve(named.isEmpty() ? "shunter.toml" : named);
        if (named.isEmpty() && !Files.exists(path, LinkOption.NOFOLLOW_LINKS)) {
            return false;
        }
        try {
            return mentions(Files.readString(path, StandardCharsets.ISO_8859_1));
        } catch (IOException e) {
            return true;
        }
    }

    /** Whether settings say something about claims; hyphens in keys are as good as underscores. */
    static boolean mentions(final String settings) {
        final String text = settings.replace('-', '_');
        return text.contains("allow_strict") || text.contains("strict_secret_file");
    }

    /** The secret that a request brings, or null; no handler sees it. */
    static String takeKey(final RequestInput input, final boolean isGrpc) {
        return isGrpc ? takeParameter(input.getParameters()) : takeHeader(input.getHeaders());
    }

    private static String takeHeader(final Map<String, String> headers) {
        String found = null;
        final Iterator<Map.Entry<String, String>> all = headers.entrySet().iterator();
        while (all.hasNext()) {
            final Map.Entry<String, String> header = all.next();
            if (isKey(header.getKey())) {
                found = header.getValue();
                all.remove();
            }
        }
        return found;
    }

    private static String takeParameter(final List<InputParameter> parameters) {
        String found = null;
        for (final Iterator<InputParameter> all = parameters.iterator(); all.hasNext(); ) {
            final InputParameter parameter = all.next();
            if (isKey(parameter.getName())) {
                found = new String(parameter.getValue(), StandardCharsets.UTF_8);
                all.remove();
            }
        }
        return found;
    }

    private static boolean isKey(final String text) {
        return text.length() == KEY.length() && text.equalsIgnoreCase(KEY);
    }

    /** Why a request that brings this secret, or null, may not say that it is strict; or null. */
    Refusal refusalOf(final String key) {
        final String model = RequestTerms.CLASS_KEY + ": requests for model \"" + name + "\" may ";
        switch ((int) slot.get(S_STRICT_CLAIMS)) {
            case CLAIMS_ALL:
                return null;
            case CLAIMS_WITH_KEY:
                return key != null && opens(key)
                        ? null
                        : new Refusal(
                                Refusal.FORBIDDEN,
                                model + "say strict only with the secret in " + KEY,
                                0);
            case CLAIMS_NONE:
                return new Refusal(
                        Refusal.FORBIDDEN,
                        model + "not say strict; [classes] allow_strict does not name it",
                        0);
            default:
                return mayForbid
                        ? Refusal.unavailable(
                                model + "not say strict before the server has read its settings")
                        : null;
        }
    }

    private boolean opens(final String key) {
        final ByteBuffer wanted =
                ByteBuffer.allocate(8 * DIGEST_WORDS).order(ByteOrder.LITTLE_ENDIAN);
        for (int word = 0; word < DIGEST_WORDS; word++) {
            wanted.putLong(page.get(H_STRICT_KEY + 8 * word));
        }
        try {
            final byte[] brought =
                    MessageDigest.getInstance("SHA-256")
                            .digest(
                                    RequestClass.stripSpace(key).getBytes(StandardCharsets.UTF_8));
            return MessageDigest.isEqual(brought, wanted.array()); // in constant time
        } catch (NoSuchAlgorithmException e) {
            throw new IllegalStateException(e); // every Java has it
        }
    }
}
