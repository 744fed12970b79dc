"""Settings of roles, data and training: their values, names, files and options.

A setting of a role is a field of its class, such as ``mu`` of `fedjax_fair.selectors.UnionFL`, with
type, default and description. ``run --methods unionfl --selector.mu 0.5`` sets it in these steps:

1. ``registry`` names the classes of each method. ``constructors.settings_of`` reads their fields,
   from ``descriptions.json`` where it can, so that no class is imported.
2. ``config`` makes the section ``selector`` of ``Config`` of the fields of all selectors.
3. ``command_line.parse_options`` finds the option, and ``setting.parse_value`` converts its text.
   A file's value goes through ``config_files.set_values`` and ``setting.check_value``.
4. ``presets.resolve`` adds the defaults of the data set, and ``usage`` refuses a setting that no
   method uses.
5. ``app.build`` calls ``constructors.construct``, which imports the class: ``UnionFL(mu=0.5)``.
"""
