package org.shunter.torchserve;

import com.google.gson.GsonBuilder;
import com.google.gson.JsonObject;
import io.netty.handler.codec.http.QueryStringDecoder;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Set;
import org.pytorch.serve.archive.model.ModelVersionNotFoundException;
import org.pytorch.serve.http.BadRequestException;
import org.pytorch.serve.servingsdk.Context;
import org.pytorch.serve.servingsdk.ModelServerEndpoint;
import org.pytorch.serve.servingsdk.annotations.Endpoint;
import org.pytorch.serve.servingsdk.annotations.helpers.EndpointTypes;
import org.pytorch.serve.servingsdk.http.Request;
import org.pytorch.serve.servingsdk.http.Response;
import org.pytorch.serve.wlm.Model;
import org.pytorch.serve.wlm.ModelManager;
import org.shunter.torchserve.forming.Spelling;
import org.shunter.torchserve.pool.NoRoomException;
import org.shunter.torchserve.pool.ServedModel;
import org.shunter.torchserve.pool.WorkerPool;
import org.shunter.torchserve.queue.Recent;
import org.shunter.torchserve.settings.CpuDemand;
import org.shunter.torchserve.settings.GroupConfig;
import org.shunter.torchserve.host.PoolMemory;
import org.shunter.torchserve.requests.RequestStories;
import org.shunter.torchserve.view.Status;

/**
 * {@code /shunter/...} on the management port, behind TorchServe's own token authorisation.
 *
 * <pre>
 * GET /shunter/status
 * GET /shunter/memory
 * GET /shunter/events[?after=NUMBER]
 * GET /shunter/requests[/{id}][?model=NAME][&amp;bad=true][&amp;count=20]
 * GET /shunter/models/{name}[/{version}]
 * GET /shunter/models/{name}[/{version}]/configuration
 * PUT /shunter/models/{name}[/{version}]/configuration?configuration=1x8x32,2x4x16[&amp;cores=auto][&amp;restart=true][&amp;auto=true]
 * </pre>
 *
 * Arguments come in the query: a body is gone before an endpoint runs.
 */
@Endpoint(
        urlPattern = "shunter",
        endpointType = EndpointTypes.MANAGEMENT,
        description = "State and configuration of Shunter")
public final class ShunterEndpoint extends ModelServerEndpoint {
    private static final String CONFIGURATION = "configuration";

    /** Called by the service loader, twice; it only checks that the plugin can be installed. */
    public ShunterEndpoint() {
        Installer.checkFirstSerializer();
    }

    private static final class NotFound extends RuntimeException {
        private static final long serialVersionUID = 1L;

        NotFound(final String text) {
            super(text);
        }
    }

    private interface Action {
        JsonObject run(String[] path, Request request);
    }

    @Override
    public void doGet(final Request request, final Response response, final Context context)
            throws IOException {
        answer(request, response, 200, ShunterEndpoint::get);
    }

    @Override
    public void doPut(final Request request, final Response response, final Context context)
            throws IOException {
        answer(request, response, 202, ShunterEndpoint::put);
    }

    @Override
    public void doPost(final Request request, final Response response, final Context context)
            throws IOException {
        notAllowed(request, response);
    }

    @Override
    public void doDelete(final Request request, final Response response, final Context context)
            throws IOException {
        notAllowed(request, response);
    }

    private static void notAllowed(final Request request, final Response response)
            throws IOException {
        write(response, 405, error(405, "MethodNotAllowed", "Allowed: GET, PUT"));
    }

    private static void answer(
            final Request request, final Response response, final int success, final Action action)
            throws IOException {
        try {
            if (Installer.manager() == null) {
                write(response, 503, error(503, "ShunterOff", "Shunter is off (SHUNTER=off)"));
                return;
            }
            final String[] path = new QueryStringDecoder(request.getRequestURI()).path().split("/");
            write(response, success, action.run(path, request));
        } catch (NoRoomException e) {
            write(response, 507, error(507, "NoRoom", e.getMessage()));
        } catch (BadRequestException e) {
            write(response, 400, error(400, "BadRequest", e.getMessage()));
        } catch (NotFound e) {
            write(response, 404, error(404, "NotFound", e.getMessage()));
        }
    }

    private static JsonObject error(final int code, final String type, final String message) {
        final JsonObject json = new JsonObject();
        json.addProperty("code", code);
        json.addProperty("type", type);
        json.addProperty("message", message);
        return json;
    }

    private static void write(final Response response, final int status, final JsonObject json)
            throws IOException {
        response.setStatus(status);
        response.setContentType("application/json");
        // No page shows it as HTML, and an escaped equals sign is hard to read.
        final GsonBuilder writer = new GsonBuilder().disableHtmlEscaping();
        final String text = writer.setPrettyPrinting().serializeNulls().create().toJson(json);
        response.getOutputStream().write((text + "\n").getBytes(StandardCharsets.UTF_8));
    }

    private static JsonObject get(final String[] path, final Request request) {
        if (path.length == 3 && path[2].equals("status")) {
            return Status.ofServer(
                    Installer.manager(), Installer.controller(), Installer.version());
        }
        if (path.length == 3 && path[2].equals("memory")) {
            return PoolMemory.of(Installer.manager().host().runtime().path());
        }
        if (path.length == 3 && path[2].equals("events")) {
            return Installer.manager().host().events().after(Arguments.of(request, "after"));
        }
        if (path.length >= 3 && path.length <= 4 && path[2].equals("requests")) {
            return requests(path.length == 4 ? path[3] : null, request);
        }
        final boolean configuration = isConfiguration(path);
        final ServedModel model = model(path, configuration);
        return configuration
                    ? configuration(model)
                    : Status.ofModel(model, Installer.manager());
    }

    /** {@code id}: of the one that is meant, or null for the last ones. */
    private static JsonObject requests(final String id, final Request request) {
        final String bad = Arguments.of(request, "bad");
        final JsonObject json =
                RequestStories.asked(
                        Installer.manager().served(),
                        id,
                        Arguments.of(request, "model"),
                        bad != null && Arguments.flag("bad", bad),
                        Arguments.of(request, "count"));
        if (id != null && json.getAsJsonArray("requests").isEmpty()) {
            throw new NotFound(
                    "Request " + id + " is not among the last " + Recent.KEPT + " of any model that"
                            + " ended; its id is x-request-id of the answer");
        }
        return json;
    }

    private static JsonObject put(final String[] path, final Request request) {
        if (!isConfiguration(path)) {
            throw new NotFound(
                    "PUT is for /shunter/models/{name}[/{version}]/configuration");
        }
        final ServedModel model = model(path, true);
        Arguments.check(request, List.of(CONFIGURATION, "cores", "restart", "auto"));
        final String text = Arguments.of(request, CONFIGURATION);
        final String auto = Arguments.of(request, "auto");
        final boolean wanted = auto != null && Arguments.flag("auto", auto);
        String warning = null;
        final String cores = Arguments.of(request, "cores");
        final String restart = Arguments.of(request, "restart");
        if (text != null || cores != null || restart != null || auto == null) {
            // An explicit change takes it out of the controller's hands; a restart does not.
            final boolean explicit = auto != null || text != null || cores != null;
            warning = change(model, text, cores, restart, explicit ? Boolean.valueOf(wanted) : null);
        } else {
            setAuto(model.pool(), wanted);
        }
        final JsonObject json = configuration(model);
        if (warning != null) {
            json.addProperty("warning", warning);
        }
        return json;
    }

    private static void setAuto(final WorkerPool pool, final boolean wanted) {
        if (wanted) {
            pool.autoMode().check(pool.current().configuration());
        }
        pool.autoMode().set(wanted);
        pool.onChanged();
    }

    /** Begin a change; what is to be said of it, or null. */
    private static String change(
            final ServedModel model,
            final String text,
            final String cores,
            final String restart,
            final Boolean automatic) {
        if (text == null && cores == null && restart == null) {
            throw new BadRequestException(
                    "configuration: missing; example: ?configuration=1x8x32,2x4x16");
        }
        final List<GroupConfig> current = model.pool().current().configuration();
        final List<GroupConfig> placed =
                text == null
                        ? current
                        : GroupConfig.placedLike(GroupConfig.parse(CONFIGURATION, text), current);
        if (cores != null) {
            GroupConfig.checkCores("cores", cores);
            placed.replaceAll(group -> group.withCores(cores));
        }
        // The caller polls; a failure is told in last_change and in the log.
        final boolean again = restart != null && Arguments.flag("restart", restart);
        if (text == null && cores == null) {
            model.pool().configure(placed, again, true, automatic);
            return null;
        }
        final CpuDemand demand = CpuDemand.of(placed.stream().map(model::placed).toList());
        if (demand.whyNotPinned() != null) {
            throw new BadRequestException(demand.whyNotPinned());
        }
        model.pool().configure(placed, again, true, automatic);
        return demand.warning();
    }

    private static boolean isConfiguration(final String[] path) {
        return path.length >= 5 && path[path.length - 1].equals(CONFIGURATION);
    }

    /** The model of {@code /shunter/models/{name}[/{version}]}. */
    private static ServedModel model(final String[] path, final boolean hasSuffix) {
        final int last = hasSuffix ? path.length - 1 : path.length;
        if (last < 4 || last > 5 || !path[2].equals("models")) {
            throw new NotFound(
                    "Known: /shunter/status, /shunter/memory, /shunter/events,"
                            + " /shunter/requests[/{id}],"
                            + " /shunter/models/{name}[/{version}][/configuration]");
        }
        final String name = path[3];
        final String version = last == 5 ? path[4] : null;
        try {
            final Model model = ModelManager.getInstance().getModel(name, version);
            for (final ServedModel served : Installer.manager().served()) {
                if (served.model() == model) {
                    return served;
                }
            }
            throw new NotFound(
                    model == null
                            ? "Model not found: " + name + Spelling.hint(name, names())
                            : "Model " + name + " has no workers, or is left to stock TorchServe");
        } catch (ModelVersionNotFoundException e) {
            throw new NotFound(e.getMessage());
        }
    }

    private static Set<String> names() {
        return ModelManager.getInstance().getDefaultModels().keySet();
    }

    private static JsonObject configuration(final ServedModel model) {
        final JsonObject json = new JsonObject();
        json.addProperty("model", model.name());
        json.addProperty("generation", model.pool().current().id);
        json.addProperty(CONFIGURATION, GroupConfig.text(model.pool().current().configuration()));
        json.addProperty("registered", GroupConfig.text(model.pool().registered()));
        json.addProperty("auto", model.pool().auto());
        json.addProperty("state", model.pool().isChanging() ? "changing" : "serving");
        json.addProperty("last_change", model.pool().lastChange());
        json.addProperty("problem", model.pool().current().problem());
        return json;
    }
}
