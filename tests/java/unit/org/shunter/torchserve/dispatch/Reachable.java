package org.shunter.torchserve.dispatch;

import java.lang.reflect.Array;
import java.lang.reflect.Field;
import java.lang.reflect.Modifier;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Collections;
import java.util.IdentityHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.function.Predicate;
import org.shunter.torchserve.queue.BatchWorker;

/** What an object of ours still refers to, through our own classes and the usual collections. */
public final class Reachable {
    private Reachable() {}

    public static List<Object> from(final Object root, final Predicate<Object> wanted) {
        final Set<Object> seen = Collections.newSetFromMap(new IdentityHashMap<>());
        final ArrayDeque<Object> open = new ArrayDeque<>(List.of(root));
        final List<Object> found = new ArrayList<>();
        while (!open.isEmpty()) {
            final Object object = open.pop();
            if (!seen.add(object)) {
                continue;
            }
            if (wanted.test(object)) {
                found.add(object);
            }
            expand(object, open);
        }
        return found;
    }

    private static void expand(final Object object, final ArrayDeque<Object> open) {
        if (object instanceof Collection<?> all) {
            all.forEach(each -> push(each, open));
        } else if (object instanceof Map<?, ?> map) {
            map.forEach((key, value) -> {
                push(key, open);
                push(value, open);
            });
        } else if (object.getClass().isArray() && !object.getClass().getComponentType().isPrimitive()) {
            for (int i = 0; i < Array.getLength(object); i++) {
                push(Array.get(object, i), open);
            }
        } else if (object.getClass().getName().startsWith("org.shunter") && !isOfTests(object)) {
            fields(object, open);
        }
    }

    /** The tests themselves know everything. */
    private static boolean isOfTests(final Object object) {
        return object.getClass().getName().contains("Test")
                && !(object instanceof BatchWorker);
    }

    private static void fields(final Object object, final ArrayDeque<Object> open) {
        for (Class<?> type = object.getClass(); type != null; type = type.getSuperclass()) {
            if (!type.getName().startsWith("org.shunter")) {
                return;
            }
            for (final Field field : type.getDeclaredFields()) {
                if (field.getType().isPrimitive() || Modifier.isStatic(field.getModifiers())) {
                    continue;
                }
                if (type.isHidden()) {
                    continue; // a lambda: its fields cannot be read
                }
                try {
                    field.setAccessible(true);
                    push(field.get(object), open);
                } catch (IllegalAccessException e) {
                    throw new AssertionError(e);
                }
            }
        }
    }

    private static void push(final Object object, final ArrayDeque<Object> open) {
        if (object != null) {
            open.push(object);
        }
    }
}
