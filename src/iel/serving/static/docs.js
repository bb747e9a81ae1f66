// The server's own description, made readable. Text goes in as text, never as markup.

const make = (tag, text = "", name = "") => Object.assign(document.createElement(tag), { textContent: text, className: name });
const box = document.getElementById("routes");
const [spec, model] = await Promise.all(["/openapi.json", "/v1/model"].map(async (path) => (await fetch(path)).json()));
document.getElementById("about").textContent = spec.info.description;
document.getElementById("model").textContent =
  `${model.algo} "${model.name}": ${model.observation_size} numbers in, ${model.action_size} out; ` +
  `planners ${model.planners.join(", ")}; at most ${model.limits.rows} rows a request.`;

const row = (count) => `[${Array(Math.min(count, 3)).fill("0.0").join(", ")}${count > 3 ? ", ..." : ""}]`;
for (const [path, methods] of Object.entries(spec.paths)) {
  if (path.startsWith("/play")) continue;
  for (const [method, route] of Object.entries(methods)) {
    const article = make("article", "", "route"), head = make("h3");
    head.append(make("b", method.toUpperCase(), `method ${method}`), make("code", path), make("span", route.summary));
    article.append(head, make("p", route.description));
    const reference = route.requestBody?.content["application/json"].schema.$ref;
    const schema = reference && spec.components.schemas[reference.split("/").pop()];
    if (schema) {
      const size = model.observation_size;
      article.append(make("pre",
        `curl ${location.origin}${path} -H 'Content-Type: application/json' \\\n` +
        `  -d '{"observation": ${row(size)}, "goal": ${row(size)}}'\n` +
        `${JSON.stringify(route.responses[200].content["application/json"].example)}`));
      const table = make("table");
      for (const [name, field] of Object.entries(schema.properties)) {
        const line = make("tr"), cell = make("td");
        cell.append(make("code", name));
        line.append(cell, make("td", field.description ?? ""));
        table.append(line);
      }
      article.append(table);
    }
    box.append(article);
  }
}
