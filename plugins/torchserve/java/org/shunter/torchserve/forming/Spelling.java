package org.shunter.torchserve.forming;

import java.util.Collection;
import java.util.Locale;

/**
 * What somebody may have meant by a name that nobody knows. Twin of {@code
 * batching/forming/spelling.py}, which counts as Python's difflib does.
 */
public final class Spelling {
    private static final double LIKENESS = 0.6;

    private Spelling() {}

    /** The nearest of the known names, as the end of an error; empty when none is near. */
    public static String hint(final String word, final Collection<String> known) {
        final String wanted = plain(word);
        String best = null;
        double most = LIKENESS;
        for (final String name : known) {
            final double likeness = likeness(plain(name), wanted);
            if (likeness >= most && (best == null || likeness > most)) {
                best = name;
                most = likeness;
            }
        }
        return best == null || best.equals(word) ? "" : "; did you mean " + best + "?";
    }

    private static String plain(final String name) {
        return name.toLowerCase(Locale.ROOT).replace('-', '_');
    }

    private static double likeness(final String a, final String b) {
        final int length = a.length() + b.length();
        return length == 0 ? 0 : 2.0 * same(a, b) / length;
    }

    /** Letters of the longest common piece, and of what is common on its left and on its right. */
    private static int same(final String a, final String b) {
        int atA = 0;
        int atB = 0;
        int longest = 0;
        for (int i = 0; i < a.length(); i++) {
            for (int j = 0; j < b.length(); j++) {
                int k = 0;
                while (i + k < a.length() && j + k < b.length() && a.charAt(i + k) == b.charAt(j + k)) {
                    k++;
                }
                if (k > longest) {
                    atA = i;
                    atB = j;
                    longest = k;
                }
            }
        }
        return longest == 0
                ? 0
                : same(a.substring(0, atA), b.substring(0, atB))
                        + longest
                        + same(a.substring(atA + longest), b.substring(atB + longest));
    }
}
