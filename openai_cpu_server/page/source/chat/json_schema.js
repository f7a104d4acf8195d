// Whether a JSON text obeys its schema. The server's grammar ensures it; this shows it, and what is still missing.
import { Validator } from "@cfworker/json-schema";

/** {value, problems}: `value` is undefined if the text is not JSON; `problems`: [{path, text}]. */
export function checked(text, schemaText) {
  let value;
  try {
    value = JSON.parse(text);
  } catch {
    return { value: undefined, problems: [{ path: "", text: "This is not complete JSON." }] };
  }
  return { value, problems: problemsOf(value, schemaText) };
}

function problemsOf(value, schemaText) {
  try {
    const schema = JSON.parse(schemaText || "{}");
    const { valid, errors } = new Validator(schema, "2020-12", false).validate(value);
    if (valid) return [];
    return errors.slice(-5).map((error) => ({ path: error.instanceLocation.replace(/^#/, "") || "/", text: error.error }));
  } catch (error) {
    return [{ path: "", text: `The page cannot check it: ${error.message}` }];
  }
}
