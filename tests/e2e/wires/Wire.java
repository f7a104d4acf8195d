import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.util.stream.Collectors;

/** Java's own client as it comes: it prefers HTTP/2 and requests it with each POST. Arguments: URL, body, count. */
public class Wire {
    public static void main(String[] args) throws Exception {
        HttpClient client = HttpClient.newHttpClient();
        for (int i = 0; i < Integer.parseInt(args[2]); i++) {
            HttpRequest request = HttpRequest.newBuilder(URI.create(args[0]))
                .header("Content-Type", "application/json")
                .POST(HttpRequest.BodyPublishers.ofString(args[1]))
                .build();
            HttpResponse<java.util.stream.Stream<String>> answer = client.send(request, HttpResponse.BodyHandlers.ofLines());
            String lines = answer.body().filter(line -> !line.isEmpty()).collect(Collectors.joining("\t"));
            System.out.println(answer.statusCode() + "\t" + lines);
        }
    }
}
