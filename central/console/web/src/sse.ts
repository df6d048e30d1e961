/** One server-sent event. */
export type Message = { id: string; event: string; data: string };

/** Splits a stream of text into server-sent events, whatever the sizes of its pieces. */
export function parser(emit: (m: Message) => void): (text: string) => void {
  let rest = "";
  let id = "", event = "", data: string[] = [];
  return (text) => {
    rest += text;
    for (;;) {
      const at = rest.search(/\r\n|\n|\r(?!$)/); // a \r at the end may be half of a \r\n
      if (at < 0) return;
      const line = rest.slice(0, at);
      rest = rest.slice(at + (rest.startsWith("\r\n", at) ? 2 : 1));
      if (line === "") {
        if (data.length) emit({ id, event: event || "message", data: data.join("\n") });
        event = "";
        data = [];
        continue;
      }
      if (line.startsWith(":")) continue;
      const colon = line.indexOf(":");
      const field = colon < 0 ? line : line.slice(0, colon);
      const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
      if (field === "id") id = value;
      else if (field === "event") event = value;
      else if (field === "data") data.push(value);
    }
  };
}
