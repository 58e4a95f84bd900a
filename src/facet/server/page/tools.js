// Turns the tools that a user pasted into those that the server expects, or says what is wrong with them.

export const EXAMPLE = [
  {
    name: "get_weather",
    description: "Get the current weather in a city.",
    parameters: {
      type: "object",
      properties: {
        city: { type: "string", description: "The name of the city." },
        unit: { type: "string", enum: ["celsius", "fahrenheit"] },
      },
      required: ["city"],
    },
  },
  {
    name: "set_reminder",
    description: "Remind the user of something at a given time.",
    parameters: {
      type: "object",
      properties: {
        text: { type: "string", description: "What to remind of." },
        time: { type: "string", description: "When, as HH:MM." },
      },
      required: ["text", "time"],
    },
  },
];

const NAME = /^[\w.-]{1,64}$/;
const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);

// Accepts a list of {type, function} or of bare functions, or a single one. Throws an Error with a readable message.
export function parseTools(text) {
  if (!text.trim()) return [];
  let given;
  try {
    given = JSON.parse(text);
  } catch (error) {
    throw new Error(`This is not valid JSON yet. ${error.message}.`);
  }
  const tools = (Array.isArray(given) ? given : [given]).map(parseTool);
  const names = tools.map((tool) => tool.function.name);
  const twice = names.find((name, at) => names.indexOf(name) !== at);
  if (twice) throw new Error(`Two tools are called ${twice}. Names must differ.`);
  return tools;
}

function parseTool(tool, at) {
  const which = `Tool ${at + 1}`;
  if (!isObject(tool)) throw new Error(`${which} is not an object with a name and parameters.`);
  const made = isObject(tool.function) ? tool.function : tool;
  if (typeof made.name !== "string") throw new Error(`${which} has no name.`);
  if (!NAME.test(made.name)) throw new Error(`${which} is called "${made.name}". Use letters, digits, _, . and -.`);
  if (made.parameters !== undefined) {
    if (!isObject(made.parameters)) throw new Error(`The parameters of ${made.name} are not a JSON schema object.`);
    if ((made.parameters.type ?? "object") !== "object") {
      throw new Error(`The parameters of ${made.name} have the type "${made.parameters.type}". It must be "object".`);
    }
  }
  return { type: "function", function: made };
}
