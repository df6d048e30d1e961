// Writes src/api.gen.ts: a TypeScript type for every schema of the API's description. The file is made anew by each
// build and is not committed, so that it cannot be out of date.
import { readFileSync, writeFileSync } from "node:fs";

const source = new URL("../../../pkg/api/openapi.json", import.meta.url);
const target = new URL("src/api.gen.ts", import.meta.url);

const name = (ref) => ref.split("/").pop();

/** The type of a schema, without null. */
function bare(s, indent) {
  if (s.$ref) return name(s.$ref);
  if (s.allOf) return s.allOf.map((one) => type(one, indent)).join(" & ");
  if (s.enum) return s.enum.filter((v) => v !== null).map((v) => JSON.stringify(v)).join(" | ");
  switch (s.type) {
    case "string":
      return "string";
    case "integer":
    case "number":
      return "number";
    case "boolean":
      return "boolean";
    case "array": {
      const of = type(s.items, indent);
      return /[|&]/.test(of) ? `(${of})[]` : `${of}[]`;
    }
    case "object":
      if (s.properties) return object(s, indent);
      return `Record<string, ${s.additionalProperties && Object.keys(s.additionalProperties).length ? type(s.additionalProperties, indent) : "unknown"}>`;
  }
  return "unknown";
}

function type(s, indent) {
  const of = bare(s, indent);
  return s.nullable && of !== "unknown" ? `${of} | null` : of;
}

function object(s, indent) {
  const required = new Set(s.required ?? []);
  const inner = indent + "  ";
  const lines = Object.entries(s.properties).map(([key, value]) => {
    const note = value.description ? `${inner}/** ${value.description} */\n` : "";
    return `${note}${inner}${key}${required.has(key) ? "" : "?"}: ${type(value, inner)};`;
  });
  return `{\n${lines.join("\n")}\n${indent}}`;
}

const { components } = JSON.parse(readFileSync(source, "utf8"));
const parts = ["// Code generated from pkg/api/openapi.json by npm run types. DO NOT EDIT."];
for (const [key, schema] of Object.entries(components.schemas)) {
  const note = schema.description ? `/** ${schema.description} */\n` : "";
  parts.push(`${note}export type ${key === "Error" ? "APIError" : key} = ${type(schema, "")};`);
}
writeFileSync(target, parts.join("\n\n") + "\n");
